"""Random statements of the kinds that agents write, with values of all types in each other's places: `statement(rng)`.

Half of what it writes makes little sense, as half of what a policy writes at the beginning does.
"""

from __future__ import annotations

import random
import re

from dbbench_adapter.datatypes import Column, Table

EMP = Table(
    "emp",
    (
        *(Column("id", "INT"), Column("name", "VARCHAR(20)"), Column("dept", "VARCHAR(20)"), Column("pay", "INT")),
        *(Column("price", "DECIMAL(8,2)"), Column("score", "DOUBLE"), Column("note", "TEXT"), Column("born", "DATE")),
        *(Column("seen", "DATETIME"), Column("big", "BIGINT"), Column("ok", "BOOLEAN")),
    ),
    (
        (1, "Ada", "Sales", 5000, 12.50, 1.5, "5", "2020-01-05", "2021-03-04 10:11:12", 9000000000, 1),
        (2, "ben", "sales", 4000, 7.25, 2.25, "50% off", "2019-12-31", "2019-12-31 23:59:59", -5, 0),
        (3, "Édith", "IT", 4500, None, -0.5, "abc", "2021-07-01", "2021-07-01 00:00:00", 0, 1),
        (4, "cy_2", None, 5000, 10, None, "", "2020-02-29", None, None, None),
        (5, "Dan", "it", None, 100.05, 3.14159, None, None, "2020-06-15 12:00:00", 7, 0),
        (6, "ada", "HR", 3999, 0.10, 1e10, "12.50", "2018-11-11", "2018-11-11 11:11:11", 1, 1),
    ),
)
TASK = Table(
    "task",
    (
        *(Column("nr", "INT"), Column("emp_id", "INT"), Column("owner", "TEXT"), Column("hours", "DECIMAL(5,1)")),
        Column("due", "DATE"),
    ),
    (
        *((1, 1, "ADA", 1.5, "2020-01-05"), (2, 1, "ada", 2.0, "2021-01-01"), (3, 2, "Ben", 10.5, "2021-07-01")),
        (4, 5, "zoe", None, None),
    ),
)

_RULES = """
statement: *6 SELECT <value> FROM emp <where?> ORDER BY id
statement: *4 SELECT id FROM emp WHERE <condition> ORDER BY id
statement: *2 SELECT <key>, <aggregate> FROM emp <where?> GROUP BY <key> ORDER BY 1, 2
statement: *2 SELECT <aggregate>, <aggregate> FROM emp <where?>
statement: SELECT dept, <aggregate> AS a FROM emp GROUP BY dept HAVING <having> ORDER BY dept, a
statement: SELECT DISTINCT <value> FROM emp ORDER BY 1
statement: SELECT id FROM emp ORDER BY <value>, id LIMIT <small>
statement: SELECT id FROM emp ORDER BY <value> DESC, id DESC LIMIT 2 OFFSET 1
statement: SELECT id, <window> FROM emp ORDER BY id
statement: SELECT e.id, t.nr FROM emp e <side?> JOIN task t ON <joined> ORDER BY e.id, t.nr
statement: SELECT <value> FROM emp UNION <all?> SELECT <value> FROM emp ORDER BY 1
statement: SELECT v FROM (SELECT id, <value> AS v FROM emp) x WHERE v <compared> <value_of_x> ORDER BY id
statement: WITH c AS (SELECT dept AS d, <aggregate> AS v FROM emp GROUP BY dept) SELECT * FROM c ORDER BY d
statement: SELECT * FROM emp WHERE <condition> ORDER BY id
statement: *2 UPDATE emp SET <assigned> WHERE <condition>
statement: *2 UPDATE emp SET <assigned>
statement: *2 DELETE FROM emp WHERE <condition>
statement: *2 INSERT INTO emp (id, <column>) VALUES (9, <literal>), (10, <literal>)
statement: INSERT INTO emp (id, <column>) SELECT id + 10, <value> FROM emp <where?>
statement: INSERT INTO task (nr, <task_column>) SELECT COUNT(*), <aggregate> FROM emp
side: LEFT
all: ALL
where: WHERE <condition>
key: *3 dept | ok | YEAR(born) | LEFT(name, 1) | pay > 4500 | UPPER(dept) | DATE(seen)
joined: *3 t.emp_id = e.id | t.owner = e.name | t.emp_id = e.note | t.due = e.born | t.due > e.seen
joined: t.hours > e.score
joined: t.owner = e.id | t.hours = e.price
having: a > <literal> | COUNT(*) > <small> | <aggregate> <compared> <literal> | a = (SELECT MAX(pay) FROM emp)
having: dept = 'SALES'
value_of_x: <literal> | (SELECT MAX(pay) FROM emp) | '12.5' | 0
window: ROW_NUMBER() OVER (PARTITION BY <key> ORDER BY <column>, id) | RANK() OVER (ORDER BY <value>)
window: SUM(<column>) OVER (ORDER BY id) | AVG(<column>) OVER (PARTITION BY dept) | LAG(<column>) OVER (ORDER BY id)
window: MAX(<value>) OVER () | COUNT(<column>) OVER (PARTITION BY dept ORDER BY id)
window: DENSE_RANK() OVER (ORDER BY <key>)
window: pay / SUM(pay) OVER () | FIRST_VALUE(name) OVER (PARTITION BY <key> ORDER BY id) | NTILE(2) OVER (ORDER BY id)
aggregate: *2 COUNT(*) | COUNT(<value>) | COUNT(DISTINCT <value>) | *3 SUM(<value>) | *3 AVG(<value>) | MIN(<value>)
aggregate: MAX(<value>) | GROUP_CONCAT(<value> ORDER BY id)
aggregate: GROUP_CONCAT(DISTINCT <value> ORDER BY <column> SEPARATOR '; ')
aggregate: ROUND(AVG(<column>), <small>) | SUM(<column>) / COUNT(*) | MAX(<column>) - MIN(<column>) | STDDEV(<column>)
aggregate: SUM(<condition>) | SUM(IF(<condition>, <number>, 0)) | AVG(<column>) * 2 | SUM(DISTINCT <column>)
column: *3 name | *2 dept | *3 pay | *3 price | *2 score | *3 note | *3 born | *2 seen | big | ok | id
task_column: owner | hours | due | emp_id
small: 0 | 1 | 2 | 3
literal: *2 <number> | *3 <text> | NULL | TRUE | <date>
number: 0 | 1 | 5 | 4500 | 5000 | 12.5 | 12.50 | 0.1 | -3 | 1e3 | 7.25 | 20200105 | 2.50e0 | 9000000000
text: 'ada' | 'ADA' | '5' | '5000' | '12.5' | '12.50' | ' 5' | '05' | 'abc' | '' | 'é' | '50%' | '1e3' | '5 apples'
text: 'sales'
date: '2020-01-05' | '2020-1-5' | '2021-07-01 00:00:00' | DATE '2020-01-05' | '2020-02-30' | '20200105' | '2020'
date: CURDATE()
value: *8 <column> | *2 <literal> | *4 <sum> | *4 <text_call> | *3 <number_call> | *3 <date_call> | *3 <chosen>
value: *2 <converted>
value: <condition> | (SELECT <aggregate> FROM emp) | (SELECT MAX(hours) FROM task WHERE emp_id = emp.id)
sum: <value> + <value> | <value> - <value> | <value> * <value> | <value> / <value> | <value> DIV <value>
sum: <value> % <value>
sum: -<value> | <column> * 1.1 | <column> / 3 | <column> + 1 | (<value> + <value>) * 2 | MOD(<value>, 3)
text_call: CONCAT(<value>, <value>) | CONCAT_WS('-', <value>, <value>) | UPPER(<value>) | LOWER(<value>)
text_call: LENGTH(<value>)
text_call: CHAR_LENGTH(<value>) | SUBSTRING(<value>, 2) | SUBSTRING(<value>, <small>, 2) | LEFT(<value>, 2)
text_call: RIGHT(<value>, 2)
text_call: REPLACE(<value>, 'a', 'x') | TRIM(<value>) | LPAD(<value>, 6, '0') | RPAD(<value>, 3, '.')
text_call: REVERSE(<value>)
text_call: INSTR(<value>, 'a') | LOCATE('A', <value>) | SUBSTRING_INDEX(<value>, ' ', 1) | FIND_IN_SET('b', 'a,B')
text_call: REPEAT(<value>, 2)
text_call: ASCII(<value>) | HEX(<value>) | STRCMP(<value>, <value>) | FIELD(<value>, <literal>, <literal>)
text_call: FORMAT(<value>, 1) | ELT(1, <value>)
number_call: ROUND(<value>) | ROUND(<value>, 1) | ROUND(<value>, 2) | TRUNCATE(<value>, 1) | CEIL(<value>)
number_call: FLOOR(<value>)
number_call: ABS(<value>) | SIGN(<value>) | SQRT(<value>) | POW(<value>, 2) | GREATEST(<value>, <value>)
number_call: LEAST(<value>, <literal>)
number_call: ROUND(<value> * 1.1, 2) | EXP(<small>) | LOG10(<value>) | ROUND(<value>, 4)
date_call: YEAR(<value>) | MONTH(<column>) | DAY(<column>) | DATE(<value>) | DATEDIFF(<value>, <date>)
date_call: DATE_FORMAT(<value>, '%Y-%m')
date_call: DATE_FORMAT(<column>, '%d %M %y %H:%i') | DATE_ADD(<value>, INTERVAL 1 DAY) | <column> + INTERVAL 1 MONTH
date_call: LAST_DAY(<column>)
date_call: DATE_SUB(<column>, INTERVAL 2 HOUR) | HOUR(<value>) | MINUTE(<column>) | DAYNAME(<column>)
date_call: WEEKDAY(<column>) | QUARTER(<value>)
date_call: TIMESTAMPDIFF(DAY, <value>, <value>) | TIMESTAMPDIFF(YEAR, <column>, '2024-05-06')
date_call: STR_TO_DATE(<value>, '%Y-%m-%d')
date_call: STR_TO_DATE('5/1/2020', '%d/%m/%Y') | EXTRACT(YEAR FROM <column>) | WEEK(<column>) | WEEK(<column>, 1)
date_call: DAYOFWEEK(<column>)
chosen: IF(<condition>, <value>, <value>) | IFNULL(<value>, <value>) | COALESCE(<column>, <value>)
chosen: NULLIF(<value>, <value>)
chosen: CASE WHEN <condition> THEN <value> ELSE <value> END
chosen: CASE <column> WHEN <literal> THEN <value> WHEN <literal> THEN 0 END
chosen: CASE WHEN <condition> THEN 'high' ELSE 'low' END | ISNULL(<value>)
converted: CAST(<value> AS SIGNED) | CAST(<value> AS DECIMAL(10,2)) | CAST(<value> AS CHAR) | CAST(<value> AS DATE)
converted: CAST(<value> AS UNSIGNED) | CONVERT(<value>, DATETIME) | CAST(<value> AS DOUBLE)
converted: CAST(<column> AS DECIMAL(6,1))
compared: *3 = | < | > | <= | >= | <> | <=>
condition: *8 <column> <compared> <literal> | *3 <value> <compared> <value> | <column> IN (<literal>, <literal>)
condition: <column> NOT IN (<number>, <number>)
condition: <column> BETWEEN <literal> AND <literal> | <column> NOT BETWEEN <number> AND <number> | <column> IS NULL
condition: <value> IS NOT NULL
condition: <column> LIKE <like> | <column> NOT LIKE <like> | <column> REGEXP <pattern> | <column> | NOT <column>
condition: <condition> AND <condition>
condition: <condition> OR NOT (<condition>) | <column> = (SELECT MAX(<column>) FROM emp)
condition: <column> IN (SELECT <task_column> FROM task)
condition: (<column>, <column>) = (<literal>, <literal>)
condition: (<column>, <column>) IN ((<literal>, <literal>), (<literal>, <literal>)) | <column> IS TRUE
condition: EXISTS (SELECT 1 FROM task WHERE emp_id = emp.id) | pay > (SELECT AVG(pay) FROM emp) | <value> XOR <value>
like: 'a%' | '%A' | '_d_' | '%5%' | '%\\\\%%' | '2020%' | '%.50' | 'é%' | '1_' | 5
pattern: '^a' | '[0-9]+$' | 'A|b' | '\\\\d' | '[[:alpha:]]' | '^.{3}$' | '\\\\.50$' | 'é' | '2020'
assigned: <column> = <value> | <column> = <literal> | name = CONCAT(name, <value>) | note = <value> | pay = pay * 1.1
assigned: price = <value>
assigned: score = score + 1 | born = DATE_ADD(born, INTERVAL 1 DAY) | note = NULL | dept = IF(<condition>, 'x', dept)
"""


def _read(rules: str) -> dict[str, list[str]]:
    grammar: dict[str, list[str]] = {}
    for line in rules.strip().split("\n"):
        name, _, alternatives = line.partition(": ")
        for text in re.split(r" \| ", alternatives):
            weight, alternative = re.fullmatch(r"(?:\*(\d+) )?(.*)", text).groups()
            grammar.setdefault(name, []).extend([alternative] * int(weight or 1))
    return grammar


_GRAMMAR = _read(_RULES)
_LEAVES = {"value": "column", "condition": "column", "aggregate": "small"}
_MAX_DEPTH = 5


def statement(rng: random.Random) -> str:
    return _written("statement", rng, 0).strip()


def _written(name: str, rng: random.Random, depth: int) -> str:
    if depth > _MAX_DEPTH:
        name = _LEAVES.get(name, name)
    text = rng.choice(_GRAMMAR[name])

    def part(match: re.Match[str]) -> str:
        if match[2] and rng.random() < 0.5:
            return ""
        return _written(match[1], rng, depth + 1)

    return re.sub(r"<(\w+)(\??)>", part, text)
