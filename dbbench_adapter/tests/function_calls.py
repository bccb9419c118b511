"""Calls of the functions of MySQL, those that SQLite refuses, and the contexts in which a value stands."""

import re

from dbbench_adapter.datatypes import Column, Table

TYPED = Table(
    "t",
    (
        *(Column("id", "INT"), Column("s", "VARCHAR(60)"), Column("w", "VARCHAR(60)"), Column("d", "DATE")),
        *(Column("m", "DATETIME"), Column("c", "DECIMAL(10,2)"), Column("f", "DOUBLE"), Column("n", "INT")),
    ),
    (
        (1, "12", "Plum", "2021-03-01", "2021-03-01 10:05:09", 7.50, 2.5, 4),
        (2, "7.5", "plum", "2020-12-31", "2020-12-31 23:59:59", -3.25, -0.5, -2),
        (3, "3 apples", "Fig, red", "2021-11-15", "2021-11-15 00:00:00", 10, 16, 0),
        (4, None, None, None, None, None, None, None),
    ),
)
UNTYPED = Table("t", tuple(Column(column.name) for column in TYPED.columns), TYPED.rows)

_TEXTS = """
CONCAT(w, '1') | CONCAT(n, '') | CONCAT(n, '0') | CONCAT_WS('', n, NULL) | CONCAT_WS('-', w, s) | UPPER(w) | LOWER(w)
UCASE(w) | LCASE(w) | TRIM(s) | LTRIM(s) | RTRIM(s) | TRIM(LEADING '1' FROM s) | TRIM(BOTH '7' FROM s)
TRIM(TRAILING '5' FROM s) | SUBSTRING(s, 1, 1) | SUBSTR(s, 2) | MID(s, 1, 1) | LEFT(s, 1) | RIGHT(s, 1)
SUBSTRING_INDEX(d, '-', 1) | SUBSTRING_INDEX(w, ',', 1) | REPLACE(s, '.', '') | REVERSE(s) | REPEAT(n, 2) | SPACE(n)
LPAD(n, 3, '0') | RPAD(n, 3, '0') | HEX(w) | HEX(n) | MD5(w) | SHA1(w) | SHA(w) | QUOTE(s) | INSERT(s, 1, 1, '2')
ELT(1, s, w) | ELT(2, 5, n) | FORMAT(c, 1) | FORMAT(n, 0) | REGEXP_SUBSTR(s, '[0-9]+')
CAST(n AS CHAR) | CONVERT(n, CHAR) | CAST(c AS CHAR) | CAST(d AS CHAR)
LENGTH(w) | CHAR_LENGTH(w) | CHARACTER_LENGTH(w) | OCTET_LENGTH(w) | BIT_LENGTH(w) | LENGTH(n) | ASCII(w)
LOCATE('u', w)
LOCATE('u', w, 2) | INSTR(w, 'u') | POSITION('u' IN w) | STRCMP(w, 'plum') | FIELD(w, 'Fig', 'plum')
FIELD(n, 4, 0) | FIND_IN_SET('red', w) | REGEXP_INSTR(w, 'u') | w LIKE 'p%' | w REGEXP 'p' | w RLIKE 'p' | w = 'plum'
DATABASE() | SCHEMA() | USER()
"""
_NUMBERS = """
ABS(c) | ABS(n) | ABS(f) | ABS(s) | SIGN(n) | SIGN(s) | CEIL(c) | CEILING(f) | CEIL(s) | FLOOR(c) | FLOOR(f)
FLOOR(n)
FLOOR(s) | ROUND(c) | ROUND(c, 1) | ROUND(f) | ROUND(n) | ROUND(s) | ROUND(s, 1) | ROUND(n, -1) | TRUNCATE(c, 1)
TRUNCATE(f, 0) | TRUNCATE(s, 1) | TRUNCATE(n, 0) | SQRT(n) | SQRT(s) | POW(n, 2) | POWER(n, 2) | POW(s, 2)
EXP(n * 0)
LN(1) | LOG(2, 8) | LOG(1) | LOG2(8) | LOG10(100) | MOD(n, 3) | MOD(c, 3) | n % 3 | n DIV 3 | c DIV 3 | -n | n + 1
n * c | n / 4 | c - f | s + 1 | s * 2 | n & 3 | n | 3 | n ^ 3 | n << 1 | PI() | PI() * 2 | DEGREES(0) | RADIANS(0)
SIN(0) | COS(0) | TAN(0) | ASIN(0) | ACOS(1) | ATAN(0) | ATAN2(0, 1) | COT(1) | CRC32(w) | CONV(n, 10, 2)
CONV(s, 10, 16)
BIN(n) | OCT(n) | GREATEST(n, 3) | GREATEST(c, 3) | GREATEST(s, 'a') | GREATEST(n, '3') | LEAST(n, 3) | LEAST(s, 'z')
LEAST(f, c) | CAST(s AS SIGNED) | CAST(c AS SIGNED) | CAST(s AS UNSIGNED) | CAST(s AS DECIMAL(10, 1))
CAST(n AS DOUBLE)
CONVERT(s, SIGNED) | RAND(1) * 0
"""
_DATES = """
YEAR(d) | MONTH(d) | DAY(d) | DAYOFMONTH(d) | DAYOFWEEK(d) | DAYOFYEAR(d) | WEEKDAY(d) | QUARTER(d) | WEEK(d)
WEEK(d, 1)
WEEK(d, 3) | WEEKOFYEAR(d) | YEARWEEK(d) | YEARWEEK(d, 1) | HOUR(m) | MINUTE(m) | SECOND(m) | MICROSECOND(m)
DAYNAME(d)
MONTHNAME(d) | DATE(m) | DATE(d) | TIME(m) | LAST_DAY(d) | DATEDIFF(d, '2021-01-01') | DATEDIFF(m, d)
TIMESTAMPDIFF(DAY, '2021-01-01', d) | TIMESTAMPDIFF(MONTH, '2020-01-01', m) | DATE_ADD(d, INTERVAL 1 DAY)
DATE_ADD(d, INTERVAL 1 HOUR) | DATE_SUB(d, INTERVAL 1 MONTH) | DATE_ADD(m, INTERVAL 1 DAY) | d + INTERVAL 1 DAY
d - INTERVAL 1 YEAR | ADDDATE(d, INTERVAL 1 DAY) | ADDDATE(d, 31) | SUBDATE(d, 31) | SUBDATE(d, INTERVAL 1 DAY)
TIMESTAMPADD(DAY, 1, d) | DATE_FORMAT(d, '%Y') | DATE_FORMAT(d, '%Y-%m') | DATE_FORMAT(m, '%H') | DATE_FORMAT(d, '%U')
DATE_FORMAT(d, '%u') | DATE_FORMAT(d, '%V') | DATE_FORMAT(d, '%v') | DATE_FORMAT(d, '%X-%V') | DATE_FORMAT(d, '%x-%v')
DATE_FORMAT(d, '%M %D') | TIME_FORMAT(m, '%H:%i') | STR_TO_DATE(d, '%Y-%m-%d') | STR_TO_DATE(m, '%Y-%m-%d %H:%i:%s')
EXTRACT(YEAR FROM d) | EXTRACT(MONTH FROM d) | EXTRACT(DAY FROM d) | EXTRACT(YEAR_MONTH FROM d)
EXTRACT(DAY_HOUR FROM m)
EXTRACT(HOUR_MINUTE FROM m) | EXTRACT(WEEK FROM d) | EXTRACT(QUARTER FROM d) | EXTRACT(HOUR FROM m)
EXTRACT(DAY_SECOND FROM m)
TO_DAYS(d) | FROM_DAYS(TO_DAYS(d)) | TO_SECONDS(d) | TIME_TO_SEC(TIME(m)) | SEC_TO_TIME(n * 60) | MAKEDATE(2021, n)
MAKETIME(10, 5, 9) | UNIX_TIMESTAMP(m) - UNIX_TIMESTAMP(d) | TIMEDIFF(m, m) | TIMESTAMP(d) | PERIOD_ADD(202101, 2)
PERIOD_DIFF(202103, 202101) | CAST(m AS DATE) | CAST(d AS DATETIME) | CAST(m AS TIME) | d | m | s | w | n | c | f
NOW() > m | CURDATE() > d | CURRENT_DATE > d | SYSDATE() > m | d >= '2021-3-1' | m < '2021-4-1'
d + 0 | m + 0
"""
_CHOICES = """
IF(n > 0, n, 'x') | IF(n > 0, c, f) | IF(n > 0, d, 'none') | IF(n > 0, w, s) | IFNULL(n, 'x') | IFNULL(c, 0)
IFNULL(d, '2000-01-01') | COALESCE(n, c) | COALESCE(w, n) | COALESCE(s, 0) | NULLIF(n, 4) | NULLIF(s, 12)
NULLIF(n, '4')
NULLIF(w, 'PLUM') | NULLIF(YEAR(d), '2021') | ISNULL(n) | CASE WHEN n > 0 THEN n ELSE 'x' END
CASE WHEN n > 0 THEN YEAR(d) ELSE 0 END | CASE WHEN n > 0 THEN c ELSE 1 END | CASE n WHEN 4 THEN 'four' ELSE n END
CASE s WHEN 12 THEN 1 ELSE 0 END | INTERVAL(n, 0, 3) | INET_ATON('0.0.0.1') | JSON_UNQUOTE('"4"')
JSON_EXTRACT('{"a": 4}', '$.a') | JSON_LENGTH('[1, 2]') | SOUNDEX(w) | UUID() IS NULL | TO_BASE64(w)
FROM_BASE64('YQ==')
UNHEX('61') | ORD(w) | SHA2(w, 256) | EXPORT_SET(1, 'a', 'b') | MAKE_SET(1, 'a', 'b') | BIT_COUNT(n) | CHARSET(w)
COLLATION(w) | SYS_GUID() IS NULL | CURRENT_USER() | CONNECTION_ID() IS NULL
"""
_AGGREGATES = """
COUNT(n) | COUNT(*) | COUNT(DISTINCT w) | SUM(n) | SUM(c) | SUM(f) | SUM(s) | AVG(n) | AVG(c) | AVG(f) | MIN(n)
MAX(c)
MIN(w) | MAX(s) | MIN(d) | MAX(m) | STD(n) | STDDEV(n) | STDDEV_POP(n) | STDDEV_SAMP(n) | VAR_POP(n) | VAR_SAMP(n)
VARIANCE(n) | GROUP_CONCAT(w) | GROUP_CONCAT(n) | MAX(d) - MIN(d) | MAX(YEAR(d)) | SUM(YEAR(d)) | AVG(MONTH(d))
MAX(m) - MIN(m) | BIT_AND(n) | BIT_OR(n) | BIT_XOR(n)
"""


def _listed(text):
    calls = re.split(r" \| (?!3(?: |\n|$))|\n", text)  # n | 3 is one call
    return [call.strip() for call in calls if call.strip()]


CALLS = [call for text in (_TEXTS, _NUMBERS, _DATES, _CHOICES) for call in _listed(text)]
AGGREGATES = _listed(_AGGREGATES)
REFUSED = _listed("""
REGEXP_SUBSTR(s, '[0-9]+') | BIT_LENGTH(w) | REGEXP_INSTR(w, 'u') | n & 3 | n | 3 | n ^ 3 | n << 1 | PI() | PI() * 2
DEGREES(0) | RADIANS(0) | SIN(0) | COS(0) | TAN(0) | ASIN(0) | ACOS(1) | ATAN(0) | ATAN2(0, 1) | COT(1) | CRC32(w)
CONV(n, 10, 2) | CONV(s, 10, 16) | BIN(n) | OCT(n) | GREATEST(c, 3) | RAND(1) * 0 | WEEK(d, 3) | WEEKOFYEAR(d)
YEARWEEK(d) | YEARWEEK(d, 1) | MICROSECOND(m) | TIME(m) | DATE_FORMAT(d, '%U') | DATE_FORMAT(d, '%u')
DATE_FORMAT(d, '%V') | DATE_FORMAT(d, '%v') | DATE_FORMAT(d, '%X-%V') | DATE_FORMAT(d, '%x-%v')
TIME_FORMAT(m, '%H:%i') | EXTRACT(YEAR_MONTH FROM d) | EXTRACT(DAY_HOUR FROM m) | EXTRACT(HOUR_MINUTE FROM m)
EXTRACT(DAY_SECOND FROM m) | TO_DAYS(d) | FROM_DAYS(TO_DAYS(d)) | TO_SECONDS(d) | TIME_TO_SEC(TIME(m))
SEC_TO_TIME(n * 60) | MAKEDATE(2021, n) | MAKETIME(10, 5, 9) | UNIX_TIMESTAMP(m) - UNIX_TIMESTAMP(d) | TIMEDIFF(m, m)
TIMESTAMP(d) | PERIOD_ADD(202101, 2) | PERIOD_DIFF(202103, 202101) | CAST(m AS TIME) | NULLIF(s, 12)
NULLIF(YEAR(d), '2021') | INTERVAL(n, 0, 3) | INET_ATON('0.0.0.1') | JSON_UNQUOTE('"4"')
JSON_EXTRACT('{"a": 4}', '$.a') | JSON_LENGTH('[1, 2]') | SOUNDEX(w) | UUID() IS NULL | TO_BASE64(w)
FROM_BASE64('YQ==') | UNHEX('61') | ORD(w) | SHA2(w, 256) | EXPORT_SET(1, 'a', 'b') | MAKE_SET(1, 'a', 'b')
BIT_COUNT(n) | CHARSET(w) | COLLATION(w) | SYS_GUID() IS NULL | CONNECTION_ID() IS NULL | STD(n) | STDDEV(n)
STDDEV_POP(n) | STDDEV_SAMP(n) | VAR_POP(n) | VAR_SAMP(n) | VARIANCE(n) | BIT_AND(n) | BIT_OR(n) | BIT_XOR(n)
""")
"""SQLite answers these with an error, over typed and untyped tables."""


# Contexts -------------------------------------------------------------------------------------------------------------


def _quoted(value):
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


def _texts(value):
    """The value as a text, also as texts that are the same number."""
    return [_quoted(text) for text in (value, value.upper(), f"0{value}", f"{value}.0", f" {value}")]


def contexts(call, value):
    """Statements by name that have a call in them, and beside it what the call returns, as text and as number."""
    same, upper, padded, pointed, blank = _texts(value)
    number = value if re.fullmatch(r"-?\d+(\.\d+)?", value) else "4"
    conditions = {
        **{"= text": f"= {same}", "= upper": f"= {upper}", "= padded": f"= {padded}", "= pointed": f"= {pointed}"},
        **{"= blank": f"= {blank}", "= number": f"= {number}", "<> text": f"<> {same}", "> text": f"> {same}"},
        **{"> '10'": "> '10'", "> 10": "> 10", ">= s": ">= s", ">= n": ">= n", ">= d": ">= d", "<=>": f"<=> {padded}"},
        **{"IN texts": f"IN ({same}, 'x')", "IN mixed": f"IN ({padded}, 77)", "IN numbers": f"IN ({number}, 77)"},
        **{"NOT IN": f"NOT IN ({same}, 'x')", "IN s": "IN (SELECT s FROM t)", "IN n": "IN (SELECT n FROM t)"},
        **{"BETWEEN texts": f"BETWEEN {same} AND {same}", "BETWEEN mixed": "BETWEEN '1' AND 9"},
        **{"BETWEEN numbers": "BETWEEN 1 AND 2021", "LIKE": "LIKE '2%'"},
        **{"ANY": "= ANY (SELECT s FROM t)", "ALL": ">= ALL (SELECT '10')"},
    }
    where = {name: f"SELECT id FROM t WHERE {call} {rest} ORDER BY id" for name, rest in conditions.items()}
    return where | {
        "IN itself": f"SELECT id FROM t WHERE {pointed} IN (SELECT {call} FROM t) ORDER BY id",
        "CASE text": f"SELECT CASE {call} WHEN {same} THEN 1 ELSE 0 END FROM t ORDER BY id",
        "CASE mixed": f"SELECT CASE {call} WHEN {padded} THEN 1 WHEN 77 THEN 2 ELSE 0 END FROM t ORDER BY id",
        "CASE number": f"SELECT CASE {call} WHEN {number} THEN 1 ELSE 0 END FROM t ORDER BY id",
        "CASE WHEN": f"SELECT CASE WHEN {call} = {padded} THEN 1 ELSE 0 END FROM t ORDER BY id",
        "IF": f"SELECT IF({call} = {same}, 1, 0) FROM t ORDER BY id",
        "IF itself": f"SELECT IF({call}, 1, 0) FROM t ORDER BY id",
        "NULLIF": f"SELECT NULLIF({call}, {same}) FROM t ORDER BY id",
        "UPDATE text": f"UPDATE t SET w = 'new' WHERE {call} = {same}",
        "UPDATE number": f"UPDATE t SET w = 'new' WHERE {call} = {number}",
        "UPDATE SET": f"UPDATE t SET w = {call}",
        "DELETE": f"DELETE FROM t WHERE {call} = {same}",
        "DELETE IN": f"DELETE FROM t WHERE {call} IN ({same}, 'x')",
        "ORDER BY": f"SELECT id FROM t ORDER BY {call}, id",
        "ORDER BY DESC": f"SELECT id FROM t ORDER BY {call} DESC, id DESC",
        "SELECT": f"SELECT {call} FROM t ORDER BY id",
        "+ 0": f"SELECT {call} + 0 FROM t ORDER BY id",
        "* 1.5": f"SELECT {call} * 1.5 FROM t ORDER BY id",
        "CONCAT": f"SELECT CONCAT({call}, '') FROM t ORDER BY id",
        "MAX": f"SELECT MAX({call}), MIN({call}) FROM t",
        "SUM": f"SELECT SUM({call}), AVG({call}) FROM t",
        "GROUP BY": f"SELECT COUNT(*) FROM t GROUP BY {call} ORDER BY 1",
        "DISTINCT": f"SELECT COUNT(DISTINCT {call}) FROM t",
        "derived": f"SELECT id FROM (SELECT id, {call} AS v FROM t) x WHERE v = {padded} ORDER BY id",
        "HAVING": f"SELECT id, {call} AS v FROM t HAVING v = {same} ORDER BY id",
        "UNION": f"SELECT {call} FROM t UNION SELECT 'x' ORDER BY 1",
    }


def aggregate_contexts(call, value):
    same, _, padded, pointed, _ = _texts(value)
    return {
        "SELECT": f"SELECT {call} FROM t",
        "grouped": f"SELECT {call} FROM t GROUP BY id ORDER BY id",
        "HAVING text": f"SELECT COUNT(*) FROM t HAVING {call} = {same}",
        "HAVING pointed": f"SELECT COUNT(*) FROM t HAVING {call} = {pointed}",
        "HAVING >": f"SELECT id FROM t GROUP BY id HAVING {call} > '10' ORDER BY id",
        "HAVING IN": f"SELECT COUNT(*) FROM t HAVING {call} IN ({padded}, 'x')",
        "HAVING BETWEEN": f"SELECT COUNT(*) FROM t HAVING {call} BETWEEN {same} AND {same}",
        "CASE": f"SELECT CASE {call} WHEN {same} THEN 1 ELSE 0 END FROM t",
        "IF": f"SELECT IF({call} = {pointed}, 1, 0) FROM t",
        "sub-query": f"SELECT id FROM t WHERE (SELECT {call} FROM t) = {pointed} ORDER BY id",
        "<=": f"SELECT id FROM t WHERE s <= (SELECT {call} FROM t) ORDER BY id",
        "UPDATE": f"UPDATE t SET w = 'new' WHERE {padded} = (SELECT v FROM (SELECT {call} AS v FROM t) x)",
        "UPDATE SET": f"UPDATE t SET w = (SELECT v FROM (SELECT {call} AS v FROM t) x)",
        "ORDER BY": f"SELECT id FROM t GROUP BY id ORDER BY {call}, id",
        "+ 0": f"SELECT {call} + 0 FROM t",
        "CONCAT": f"SELECT CONCAT({call}, '') FROM t",
    }
