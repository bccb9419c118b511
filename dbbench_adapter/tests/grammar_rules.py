"""The rules of the grammar that `grammar` writes statements of.

A rule has a name and a line each for its alternatives, of which `*3` before one makes it three times as
likely. `<x>` stands for a text of rule x, `<x?>` for one or nothing, `<x,>` and `<x+>` for one to three of them.
"""

from __future__ import annotations

from dbbench_adapter.dialect.functions import AGGREGATES, FUNCTIONS
from dbbench_adapter.tests.hostile import ESCAPE

RULES = f"""
statement:
  *44 <query>
  *24 <change>
  *10 <definition>
  *4 <show>
  *4 <setting>
  *4 <transaction>
  *2 <program>
  <server>
  <files>
  <several>
  <commented>

query:
  *16 <select>
  *5 <grouped>
  *4 <join>
  *3 <windowed>
  *3 <pair> <union> <pair>
  *2 (<pair>) <union> (<pair>) <ending?>
  <select> <union> <select> <ending?>
  WITH <cte,> <select>
  WITH c (a, b) AS (<pair>) SELECT <value,> FROM c <where?> <ending?>
  <recursive> SELECT <value,> FROM r
  <recursive> SELECT MAX(LENGTH(a)), COUNT(*) FROM r
  <flood>
  VALUES (<value>, <value>), (<value>, <value>)
  TABLE <table>
  <select> FOR UPDATE
  <select> LOCK IN SHARE MODE
  DO <value,>
recursive:
  WITH RECURSIVE r(n, a, b) AS (SELECT 1, <value>, <value> UNION <all?> SELECT n + 1, <value>, <value> FROM r <bound?>)
  WITH RECURSIVE r(n, a) AS (SELECT 1, <text> UNION ALL SELECT n + 1, CONCAT(a, <text>) FROM r <bound?>)
select:
  SELECT <value,>
  *3 SELECT <number>, <text>, <date>
  *8 SELECT <item,> FROM <source> <where?> <ending?>
  SELECT DISTINCT <value,> FROM <source> <where?> <ending?>
  SELECT * FROM <source> <where?> <ending?>
  SELECT STRAIGHT_JOIN SQL_CALC_FOUND_ROWS <value> FROM <source>
  SELECT <value> INTO @v
item:
  *12 <value>
  *2 <value> AS <name>
  t.*
pair:
  *3 SELECT a, b FROM <source> <where?> <ending?>
  SELECT <value>, <value> FROM <source> <where?>
  SELECT <value> AS a, <value> AS b
grouped:
  *2 SELECT <aggregate,> FROM <source> <where?>
  *2 SELECT <column>, <aggregate,> FROM <source> <where?> GROUP BY 1 <having?> <ending?>
  SELECT <value> AS x, <aggregate> FROM <source> GROUP BY x WITH ROLLUP
  SELECT b, <aggregate> FROM <source> GROUP BY b ORDER BY <aggregate> <direction?> LIMIT <small>
having:
  HAVING <aggregate> > <value>
  HAVING <condition>
join:
  SELECT <value,> FROM <table> x <joined> <where?> <ending?>
  SELECT x.a, y.b, <value> FROM <table> x <outer?> JOIN <table> y USING (a, b) <ending?>
  SELECT COUNT(*), <aggregate> FROM <table> x NATURAL JOIN <table> y
  SELECT x.a, y.* FROM <table> x <outer?> JOIN <table> y ON x.<column> <compared> y.<column> <ending?>
joined:
  JOIN (<pair>) y USING (a, b)
  CROSS JOIN (SELECT 1 AS n UNION SELECT 2) y
  LEFT JOIN (SELECT b AS d FROM <table>) y ON x.b = y.d
outer:
  LEFT
  RIGHT
  INNER
  NATURAL
  FULL OUTER
flood:
  SELECT <aggregate> FROM <table>, t x1, t x2, t x3
  SELECT COUNT(*) FROM t x1, t x2, t x3, t x4, t x5 WHERE <xvalue> <compared> <xvalue>
  SELECT <xvalue> z FROM t x1, t x2, t x3, t x4 ORDER BY 1
  SELECT <xvalue> z, COUNT(*) FROM t x1, t x2, t x3 GROUP BY z
  SELECT DISTINCT <xvalue> FROM t x1, t x2, t x3
  SELECT <xvalue> FROM t x1, t x2, t x3 UNION SELECT <xvalue> FROM t x1, t x2
  SELECT MIN(<xvalue>), MAX(<xvalue>), COUNT(DISTINCT <xvalue>) FROM t x1, t x2, t x3
  SELECT GROUP_CONCAT(DISTINCT <xvalue> ORDER BY <xvalue>) FROM t x1, t x2, t x3
  SELECT <window>(x1.b) OVER (PARTITION BY <xvalue> ORDER BY <xvalue>) FROM t x1, t x2, t x3
xvalue:
  x1.a
  CONCAT(x1.a, x2.a, x1.b)
  REPEAT(x1.a, x2.b * <small>)
  REPEAT(x1.a, <count>)
  CONCAT(<text>, x1.b)
  x1.b * x2.b % <small>
  x1.a REGEXP <pattern>
  REVERSE(LPAD(x2.a, <count>, x1.a))
  MD5(CONCAT(<text>, x1.b))
windowed:
  SELECT <value>, <over> FROM <source> <ending?>
  SELECT <over,> FROM <source> <where?>
  SELECT <window>(b) OVER w FROM <source> WINDOW w AS (<partition?> ORDER BY <value>)
over:
  *4 ROW_NUMBER() OVER (<partition?> ORDER BY <value> <direction?>)
  *4 <window>(<value>) OVER (<partition?> ORDER BY <column> <frame?>)
  *3 RANK() OVER (ORDER BY <value>)
  *2 NTILE(<small>) OVER (ORDER BY <column>)
  LAG(<value>, <small>) OVER (<partition?> ORDER BY <value>)
  NTH_VALUE(<value>, <small>) OVER (ORDER BY <column>)
  PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY b) OVER (<partition?>)
window:
  *3 SUM
  *3 COUNT
  *3 AVG
  *3 MIN
  *3 MAX
  *2 FIRST_VALUE
  *2 LAST_VALUE
  STDDEV
  BIT_XOR
  GROUP_CONCAT
  JSON_ARRAYAGG
partition:
  PARTITION BY <value>
frame:
  ROWS BETWEEN <bound_before> AND <bound_after>
  RANGE BETWEEN <bound_before> AND <bound_after>
  ROWS UNBOUNDED PRECEDING
bound_before:
  UNBOUNDED PRECEDING
  <number> PRECEDING
  CURRENT ROW
bound_after:
  UNBOUNDED FOLLOWING
  <number> FOLLOWING
  CURRENT ROW
cte:
  c AS (<select>)
  c2 (x) AS (SELECT <value> FROM <source>)
all:
  ALL
bound:
  *4 WHERE n < <small>
  WHERE n < 100000
  WHERE LENGTH(a) < <count>
union:
  *2 UNION
  *2 UNION ALL
  EXCEPT
  INTERSECT
  EXCEPT ALL
ending:
  *2 ORDER BY 1 <direction?>
  ORDER BY <value,>
  LIMIT <small>
  LIMIT <number>, <number>
  ORDER BY RAND() LIMIT <small> OFFSET <small>
  ORDER BY <value> COLLATE <collation>
direction:
  DESC
  ASC
where:
  WHERE <condition>
source:
  *60 <table>
  *6 <table> AS t
  *8 (<pair>) AS x
  *4 <table> NATURAL JOIN u
  <table> PARTITION (p0)
  <table> FORCE INDEX (i)
  <table> FOR SYSTEM_TIME ALL
  JSON_TABLE(<json>, '$[*]' COLUMNS (a TEXT PATH '$', b FOR ORDINALITY)) AS x
table:
  *60 t
  *24 u
  *4 dbbench.t
  *2 w
  v
  T
  *2 <foreign>
foreign:
  information_schema.<listed>
  information_schema.tables
  mysql.user
  mysql.global_priv
  performance_schema.threads
  sys.session
  sqlite_master
  agentgrpo_0.t
  seq_1_to_1000000
listed:
  TABLES
  COLUMNS
  SCHEMATA
  STATISTICS
  VIEWS
  PROCESSLIST
  ROUTINES
  CHARACTER_SETS
  COLLATIONS
  KEY_COLUMN_USAGE
  TABLE_CONSTRAINTS
  REFERENTIAL_CONSTRAINTS
  GLOBAL_VARIABLES
  SYSTEM_VARIABLES
  USER_PRIVILEGES
  INNODB_TRX
  INNODB_SYS_TABLES
  INNODB_BUFFER_PAGE
  INNODB_METRICS
  ALL_PLUGINS
  FILES
  OPTIMIZER_TRACE
  KEYWORDS
  PARAMETERS
  EVENTS
  THREAD_POOL_STATS
column:
  *60 a
  *60 b
  *2 t.a
  t.`b`
  c
  rowid
  _rowid_
name:
  *4 x
  `a name`
  'text'
  `{"n" * 64}`
  `{"n" * 70}`
  名前
  `rank`
  `o``k`
  ` x`
value:
  *16 <column>
  *12 <number>
  *12 <text>
  *24 <call>
  *6 <arithmetic>
  *3 <condition>
  *4 <chosen>
  *2 <converted>
  *2 (SELECT <aggregate> FROM <source>)
  (SELECT <value> FROM <source> <where?> LIMIT 1)
  <odd_value>
odd_value:
  *4 NULL
  *2 TRUE
  DEFAULT
  (<value>, <value>)
  @v
  @v := <value>
  @@<variable>
  ?
  <nest>
arithmetic:
  *2 <value> <operator> <value>
  *2 (<value> <operator> <value>)
  -<value>
  ~<value>
  !<value>
  BINARY <value>
  <value> COLLATE <collation>
  <date> + INTERVAL <number> <unit>
operator:
  *2 +
  *2 -
  *2 *
  /
  DIV
  %
  MOD
  &
  |
  ^
  <<
  >>
  ||
compared:
  *2 =
  <
  >
  <=
  >=
  <>
  <=>
condition:
  *6 <value> <compared> <value>
  *6 <column> <compared> <number>
  *2 <column> IN (<number,>)
  <value> IS <not?> NULL
  <value> <not?> BETWEEN <value> AND <value>
  <value> <not?> IN (<value,>)
  <value> <not?> IN (SELECT <value> FROM <source> <where?>)
  <not?> EXISTS (<select>)
  <value> <compared> ANY (SELECT <value> FROM <source>)
  <value> <compared> ALL (SELECT <value> FROM <source>)
  <value> <not?> LIKE <like>
  <value> <not?> LIKE <like> ESCAPE <text>
  <value> <not?> REGEXP <pattern>
  <value> LIKE <like> AND <value> SOUNDS LIKE <value>
  <condition> AND <condition>
  <condition> OR <condition>
  NOT (<condition>)
  <condition> XOR <condition>
  (a, b) = (<value>, <value>)
  (a, b) IN (<pair>)
  MATCH (<column>) AGAINST (<value> IN BOOLEAN MODE)
  <value> IS <not?> TRUE
not:
  NOT
chosen:
  CASE WHEN <condition> THEN <value> ELSE <value> END
  CASE <value> WHEN <value> THEN <value> END
  IF(<condition>, <value>, <value>)
  COALESCE(<value,>)
  IFNULL(<value>, <value>)
  NULLIF(<value>, <value>)
converted:
  CAST(<value> AS <type>)
  CONVERT(<value>, <type>)
  CONVERT(<text> USING <charset>)
  CAST(<value> AS CHAR CHARACTER SET <charset>)
type:
  SIGNED
  UNSIGNED
  CHAR
  CHAR(<number>)
  BINARY(<count>)
  DECIMAL
  DECIMAL(<number>, <number>)
  DECIMAL(65, 38)
  DATE
  DATETIME(6)
  TIME
  DOUBLE
  JSON
  YEAR
charset:
  utf8mb4
  latin1
  ucs2
  utf16
  utf32
  sjis
  gbk
  binary
collation:
  utf8mb4_bin
  utf8mb4_general_ci
  utf8mb4_unicode_520_nopad_ci
  utf8mb4_0900_ai_ci
  latin1_swedish_ci
  binary
number:
  *8 <small>
  *4 <count>
  <huge>
small:
  *4 1
  *2 2
  3
  0
  -1
  7
  100
  900
  1.5
  '2'
count:
  10
  1000
  1000
  30000
  65535
  100000
  250000
  262144
  1000000
  1000000000
  4294967295
huge:
  2147483648
  9223372036854775807
  -9223372036854775808
  18446744073709551615
  99999999999999999999999999999999
  1e308
  -1e308
  9e999
  1e-400
  0.{"1" * 40}
  {"9" * 65}.{"9" * 38}
  {"7" * 400}
  0xFFFFFFFFFFFFFFFFFF
  b'1111'
text:
  *6 'n7'
  *2 'Pear'
  ''
  *3 <date>
  *2 <long>
  *2 '12 apples'
  'it''s'
  'a\\\\'
  '\\0\\Z%_'
  'é\u0301Ω漢😀'
  '\ufdfa\ufdfa'
  X'FF00AC'
  _latin1 X'E9'
  _utf8mb4'x'
  N'x'
  "x"
  'ab' 'cd'
  '{"k" * 500}'
  'a,b,c,,d'
  <json>
  '{ESCAPE}'
long:
  REPEAT(<text>, <count>)
  REPEAT('x', <count>)
  REPEAT('\u0316\u0301', <count>)
  REPEAT('ẞ', 60000)
  REPEAT(a, <count>)
  SPACE(<count>)
  LPAD('x', <count>, <text>)
  RPAD(a, <count>, <text>)
  CONCAT(<long>, <long>)
  REPLACE(<long>, 'x', <text>)
  GROUP_CONCAT(<value>)
date:
  *4 '2024-01-31'
  '2024-02-29 23:59:59.999999'
  '9999-12-31'
  '0000-00-00'
  '10:11:12'
  '-838:59:59'
  NOW()
  CURDATE()
  DATE '2024-01-31'
  TIMESTAMP '2024-01-31 10:00:00'
  20240131
  '2024-13-45'
  '31/01/2024'
unit:
  DAY
  MONTH
  YEAR
  SECOND
  MICROSECOND
  WEEK
  QUARTER
  DAY_SECOND
  YEAR_MONTH
like:
  *2 'n%'
  '%1%'
  '_n__'
  '%\\\\%%'
  '%a%b%c%d%e%f%g%'
  REPEAT('%_', <small>)
  REPEAT('%a', <count>)
  <text>
pattern:
  *2 '^n[0-9]+$'
  '(x+x+)+y'
  '(a|aa)+$'
  '[[:alpha:]]+'
  '('
  'a{{1,1000}}'
  '(?i)(?=x).*?'
  '(.*)*\\\\1'
  '\\\\p{{L}}+'
  REPEAT('(a', <small>)
  <text>
json:
  '[1, 2, 3]'
  '{{"a": {{"b": [1, null, "x"]}}}}'
  '{"[" * 200}{"]" * 200}'
  'null'
  '{{"a": 1'
  CONCAT('[', REPEAT('1,', <count>), '1]')
  REPEAT('[', <count>)
path:
  '$'
  '$.a'
  '$.a.b[0]'
  '$[last]'
  '$**.b'
  '$[*]'
call:
  *16 <text_call>
  *12 <number_call>
  *8 <date_call>
  *2 <odd_call>
  *2 <json_call>
  *2 <other_call>
text_call:
  CONCAT(<value,>)
  CONCAT_WS(<text>, <value,>)
  UPPER(<value>)
  LOWER(<value>)
  LENGTH(<value>)
  CHAR_LENGTH(<value>)
  SUBSTRING(<value>, <number>, <number>)
  SUBSTRING(<value> FROM <number>)
  SUBSTRING_INDEX(<value>, <text>, <number>)
  LEFT(<value>, <number>)
  RIGHT(<value>, <number>)
  REPLACE(<value>, <text>, <text>)
  INSERT(<value>, <number>, <number>, <text>)
  TRIM(<value>)
  TRIM(BOTH <text> FROM <value>)
  TRIM(TRAILING <text> FROM <long>)
  LTRIM(<value>)
  LOCATE(<value>, <value>, <number>)
  INSTR(<value>, <text>)
  POSITION(<text> IN <value>)
  REVERSE(<value>)
  REPEAT(<value>, <number>)
  LPAD(<value>, <number>, <text>)
  RPAD(<value>, <number>, <text>)
  HEX(<value>)
  UNHEX(<text>)
  ASCII(<value>)
  ORD(<value>)
  CHAR(<number,>)
  CHAR(<number,> USING <charset>)
  FIELD(<value>, <value,>)
  ELT(<number>, <value,>)
  FIND_IN_SET(<text>, <value>)
  STRCMP(<value>, <value>)
  FORMAT(<value>, <number>)
  QUOTE(<value>)
  MD5(<value>)
  SHA1(<value>)
  SHA2(<value>, 512)
  SOUNDEX(<value>)
  MAKE_SET(<number>, <value,>)
  EXPORT_SET(<number>, <text>, <text>, <text>, <number>)
  TO_BASE64(<value>)
  FROM_BASE64(<value>)
  WEIGHT_STRING(<value>)
  REGEXP_REPLACE(<value>, <pattern>, <text>)
  REGEXP_SUBSTR(<value>, <pattern>)
  REGEXP_INSTR(<value>, <pattern>)
  SFORMAT(<text>, <value>)
  SFORMAT('{{:>1000000000}}', <value>)
  NATURAL_SORT_KEY(<value>)
number_call:
  ABS(<value>)
  CEIL(<value>)
  FLOOR(<value>)
  ROUND(<value>)
  ROUND(<value>, <number>)
  TRUNCATE(<value>, <number>)
  SQRT(<value>)
  POW(<value>, <value>)
  EXP(<value>)
  LN(<value>)
  LOG(<value>, <value>)
  LOG10(<value>)
  MOD(<value>, <value>)
  SIGN(<value>)
  GREATEST(<value>, <value>)
  LEAST(<value>, <value>)
  RAND(<number>)
  PI()
  CONV(<value>, <number>, <number>)
  BIN(<value>)
  OCT(<value>)
  BIT_COUNT(<value>)
  CRC32(<value>)
  ATAN2(<value>, <value>)
  DEGREES(<value>)
  INET_NTOA(<number>)
  INTERVAL(<number>, <number>, <number>)
date_call:
  YEAR(<date>)
  MONTH(<date>)
  DAYNAME(<date>)
  DATE(<value>)
  TIME(<value>)
  HOUR(<date>)
  WEEK(<date>, <number>)
  LAST_DAY(<date>)
  DATEDIFF(<date>, <date>)
  TIMESTAMPDIFF(<unit>, <date>, <date>)
  TIMESTAMPADD(<unit>, <number>, <date>)
  DATE_ADD(<date>, INTERVAL <number> <unit>)
  DATE_SUB(<date>, INTERVAL <number> <unit>)
  DATE_FORMAT(<date>, '%Y-%m-%d %H:%i:%s %W %M %j %U %x %%')
  DATE_FORMAT(<date>, <text>)
  STR_TO_DATE(<text>, '%d/%m/%Y')
  STR_TO_DATE(<text>, <text>)
  FROM_UNIXTIME(<number>)
  UNIX_TIMESTAMP(<date>)
  MAKEDATE(<number>, <number>)
  MAKETIME(<number>, <number>, <number>)
  SEC_TO_TIME(<number>)
  TO_DAYS(<date>)
  FROM_DAYS(<number>)
  PERIOD_ADD(<number>, <number>)
  EXTRACT(<unit> FROM <date>)
  CONVERT_TZ(<date>, '+00:00', '+14:00')
  ADDTIME(<date>, <date>)
  TIMEDIFF(<date>, <date>)
  TIME_FORMAT(<date>, <text>)
json_call:
  JSON_EXTRACT(<json>, <path>)
  JSON_SET(<json>, <path>, <value>)
  JSON_MERGE_PATCH(<json>, <json>)
  JSON_OBJECT(<text>, <value>)
  JSON_ARRAY(<value,>)
  JSON_SEARCH(<json>, 'all', <text>)
  JSON_VALID(<value>)
  JSON_DEPTH(<json>)
  JSON_DETAILED(<json>)
  JSON_TYPE(<json>)
  JSON_OVERLAPS(<json>, <json>)
  JSON_UNQUOTE(<value>)
  JSON_QUOTE(<value>)
  JSON_CONTAINS(<json>, <json>)
  COLUMN_CREATE(<text>, <value>)
  COLUMN_GET(COLUMN_CREATE('a', <value>), 'a' AS CHAR)
other_call:
  SLEEP(<number>)
  BENCHMARK(<number>, <value>)
  GET_LOCK(<text>, <number>)
  LOAD_FILE(<text>)
  UUID()
  DATABASE()
  USER()
  CURRENT_USER
  VERSION()
  CONNECTION_ID()
  LAST_INSERT_ID(<number>)
  FOUND_ROWS()
  ROW_COUNT()
  AES_ENCRYPT(<value>, <text>)
  AES_DECRYPT(<value>, <text>)
  COMPRESS(<value>)
  UNCOMPRESS(<value>)
  UNCOMPRESS(CONCAT(X'FFFFFF3F', SUBSTRING(COMPRESS(<long>), 5)))
  ENCODE(<value>, <text>)
  DES_ENCRYPT(<value>, <text>)
  ENCRYPT(<value>)
  PASSWORD(<value>)
  RANDOM_BYTES(<number>)
  EXTRACTVALUE('<a><b>1</b></a>', <text>)
  EXTRACTVALUE(<text>, '//b[1]')
  UPDATEXML(<text>, '/a', <text>)
  ST_ASTEXT(ST_GEOMFROMTEXT(<wkt>))
  ST_BUFFER(ST_GEOMFROMTEXT(<wkt>), <number>)
  ST_AREA(ST_GEOMFROMTEXT(<wkt>))
  ST_INTERSECTS(ST_GEOMFROMTEXT(<wkt>), ST_GEOMFROMTEXT(<wkt>))
  ST_GEOMFROMWKB(<text>)
  ST_ASGEOJSON(ST_GEOMFROMTEXT(<wkt>), <number>)
  ST_GEOMFROMGEOJSON(<json>)
  NAME_CONST(<text>, <value>)
  NEXTVAL(s)
  SETVAL(s, <number>)
  LASTVAL(s)
  VALUES(a)
  DEFAULT(b)
  COERCIBILITY(<value>)
  COLLATION(<value>)
  GROUPING(a)
  INET6_NTOA(INET6_ATON(<text>))
  UUID_SHORT()
  DECODE_HISTOGRAM('SINGLE_PREC_HB', <text>)
  ROWNUM()
wkt:
  'POINT(1 2)'
  'POINT(1e308 -1e308)'
  'LINESTRING(0 0,1 1,2 0)'
  'POLYGON((0 0,4 0,4 4,0 4,0 0),(1 1,2 1,2 2,1 1))'
  'GEOMETRYCOLLECTION(POINT(1 1),GEOMETRYCOLLECTION())'
  CONCAT('LINESTRING(', REPEAT('1 2,', <count>), '1 1)')
  <text>
odd_call:
  <function>()
  <function>(<value>)
  <function>(<value>, <value>)
  <function>(<value>, <value>, <value>)
  <function>(<value>, <value>, <value>, <value>)
  <function>(<long>, <long>)
  <function>(DISTINCT <value>)
  <function>(*)
aggregate:
  *6 COUNT(*)
  *3 COUNT(<value>)
  *3 COUNT(DISTINCT <value,>)
  *3 SUM(<value>)
  *3 AVG(<value>)
  *3 MIN(<value>)
  *3 MAX(<value>)
  GROUP_CONCAT(<distinct?> <value> ORDER BY <value> SEPARATOR <text>)
  GROUP_CONCAT(<value> LIMIT <small>)
  STDDEV(<value>)
  VAR_SAMP(<value>)
  BIT_AND(<value>)
  BIT_XOR(<value>)
  JSON_ARRAYAGG(<value>)
  JSON_OBJECTAGG(<text>, <value>)
  SUM(DISTINCT <value>)
  ANY_VALUE(<value>)
distinct:
  DISTINCT

change:
  *10 INSERT INTO <own> VALUES <row,>
  *6 INSERT INTO <own> (a, b) VALUES <row,>
  INSERT IGNORE INTO <own> VALUES <row,>
  INSERT INTO <own> (<column,>) VALUES (<value,>)
  INSERT INTO <own> SET a = <value>, b = <value>
  *2 INSERT INTO <own> <pair>
  INSERT INTO <own> SELECT x.a, y.b FROM t x, t y, t z
  INSERT INTO <own> WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r <bound?>) SELECT <text>, n FROM r
  INSERT INTO <own> SELECT <long>, x.b FROM t x, t y
  INSERT INTO <own> VALUES <row> ON DUPLICATE KEY UPDATE <assignment,>
  INSERT INTO <own> VALUES <row> RETURNING <value>
  INSERT DELAYED INTO <own> VALUES <row>
  REPLACE INTO <own> VALUES <row,>
  REPLACE INTO <own> <pair>
  *12 UPDATE <own> SET <assignment,> <where?>
  UPDATE IGNORE <own> SET <assignment,> <where?> <ending?>
  UPDATE t JOIN u USING (b) SET t.a = <value> <where?>
  UPDATE t, u SET u.a = <value>, t.b = <value> WHERE t.b = u.b
  UPDATE <foreign> SET a = <value>
  *8 DELETE FROM <own> WHERE <condition>
  DELETE FROM <own> ORDER BY <value> LIMIT <small>
  DELETE t FROM t JOIN u USING (b) <where?>
  DELETE t, u FROM t, u WHERE <condition>
  DELETE FROM <own> <where?> RETURNING <value>
  DELETE FROM <foreign>
  TRUNCATE TABLE <own>
  LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t
own:
  *20 t
  *10 u
  w
  v
  tmp
row:
  *8 (<text>, <small>)
  (<value>, <value>)
  (<long>, <number>)
  (DEFAULT, NULL)
  (<value,>)
assignment:
  *4 a = <text>
  *4 b = <small>
  a = <value>
  b = <value>
  a = CONCAT(a, a)
  b = b <operator> <number>
  a = <long>

definition:
  *2 CREATE TABLE <if_not?> <new> (<part,>) <option?>
  *2 CREATE TABLE <new> AS <pair>
  CREATE TABLE <new> LIKE <table>
  CREATE OR REPLACE TABLE <new> (a TEXT, b INT)
  *2 CREATE TEMPORARY TABLE <new> (<part,>)
  *2 CREATE TEMPORARY TABLE <new> AS <pair>
  CREATE TEMPORARY TABLE <new> AS SELECT <long> a, x.b FROM t x, t y
  CREATE TABLE <new> AS SELECT <long> a, x.b FROM t x, t y
  *2 CREATE OR REPLACE <view_kind?> VIEW <new> AS <select>
  CREATE <view_kind?> VIEW v AS <pair>
  ALTER VIEW v AS <select>
  *2 CREATE <index_kind?> INDEX i ON <own> (<key,>)
  CREATE INDEX i ON <own> ((<value>))
  *4 ALTER TABLE <own> <alteration,>
  DROP INDEX i ON <own>
  DROP TABLE <if_is?> <own>
  DROP TABLE t, u
  DROP VIEW <if_is?> v
  DROP TEMPORARY TABLE <own>
  RENAME TABLE <own> TO <new>
  RENAME TABLE t TO x9, u TO t, x9 TO u
  CREATE SEQUENCE <if_not?> s START WITH <number> INCREMENT BY <number> <cycle?>
  ALTER SEQUENCE s RESTART <number>
  DROP SEQUENCE s
  CREATE TRIGGER g <moment> <event> ON <own> FOR EACH ROW SET NEW.b = <value>
  CREATE FUNCTION f(x INT) RETURNS INT RETURN <value>
  CREATE PROCEDURE p() BEGIN <statement>; END
  CREATE EVENT e ON SCHEDULE EVERY 1 SECOND DO <statement>
  CREATE DATABASE <new>
  DROP DATABASE <dropped>
  ALTER DATABASE dbbench CHARACTER SET <charset>
  ALTER DATABASE COLLATE <collation>
  CREATE PACKAGE p AS FUNCTION f RETURN INT; END
  CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1')
dropped:
  *3 x9
  dbbench
  mysql
  agentgrpo_0
cycle:
  CYCLE
if_not:
  IF NOT EXISTS
if_is:
  IF EXISTS
new:
  *4 w
  *2 x9
  tmp
  u
  v
  <name>
view_kind:
  ALGORITHM = MERGE
  ALGORITHM = TEMPTABLE
  SQL SECURITY INVOKER
  DEFINER = root@localhost
index_kind:
  UNIQUE
  FULLTEXT
  SPATIAL
key:
  a(10)
  b
  a(767) DESC
  <column>
part:
  *2 a TEXT
  *2 b INT
  id INT PRIMARY KEY AUTO_INCREMENT
  c <declared> <attribute?>
  d <declared> <attribute+>
  PRIMARY KEY (b)
  UNIQUE KEY k (b)
  FOREIGN KEY (b) REFERENCES t (b) ON DELETE CASCADE
  CHECK (<condition>)
  CONSTRAINT ck CHECK (b > <number>)
  FULLTEXT (a)
  PERIOD FOR SYSTEM_TIME (x, y)
  <name> <declared>
declared:
  *2 INT
  *2 TEXT
  VARCHAR(<number>)
  CHAR(255)
  BIGINT UNSIGNED ZEROFILL
  DECIMAL(<number>, <number>)
  DOUBLE
  FLOAT(<number>)
  DATE
  DATETIME(6)
  TIMESTAMP
  TIME
  YEAR
  ENUM('a', 'b', <text>)
  SET('a', 'b')
  BLOB
  LONGTEXT
  JSON
  BIT(<number>)
  GEOMETRY
  UUID
  INET6
  BOOLEAN
  BINARY(<count>)
attribute:
  *2 NOT NULL
  *2 DEFAULT <text>
  DEFAULT <number>
  DEFAULT (<value>)
  DEFAULT NOW() ON UPDATE NOW()
  AS (<value>)
  GENERATED ALWAYS AS (<value>) STORED
  AS (<long>) VIRTUAL
  PRIMARY KEY
  UNIQUE
  AUTO_INCREMENT
  CHECK (<condition>)
  COLLATE <collation>
  CHARACTER SET <charset>
  COMMENT <text>
  INVISIBLE
  COMPRESSED
  WITHOUT SYSTEM VERSIONING
  REFERENCES u (b)
option:
  ENGINE = <engine>
  AUTO_INCREMENT = <number>
  CHARSET = <charset>
  COMMENT = 'x'
  ROW_FORMAT = COMPRESSED KEY_BLOCK_SIZE = 1
  WITH SYSTEM VERSIONING
  PARTITION BY HASH (b) PARTITIONS <number>
  UNION = (mysql.user)
  CONNECTION = 'mysql://root@127.0.0.1/mysql/user'
  DATA DIRECTORY = '/tmp'
  ENCRYPTED = YES
  PAGE_COMPRESSED = 1
  AVG_ROW_LENGTH = <number> MAX_ROWS = <number>
  TRANSACTIONAL = 1
  MIN_ROWS = <number>
engine:
  InnoDB
  MyISAM
  MEMORY
  Aria
  CSV
  ARCHIVE
  MERGE
  FEDERATED
  SEQUENCE
  BLACKHOLE
  CONNECT
alteration:
  *3 ADD COLUMN c <declared> <attribute?>
  ADD COLUMN <name> <declared> FIRST
  *2 DROP COLUMN <column>
  *2 RENAME COLUMN a TO c
  CHANGE a c <declared> <attribute?>
  MODIFY b <declared> <attribute?>
  RENAME TO <new>
  ADD INDEX i (<key,>)
  ADD <index_kind> (<key>)
  ADD PRIMARY KEY (b)
  DROP PRIMARY KEY
  ADD CONSTRAINT fk FOREIGN KEY (b) REFERENCES t (b)
  ADD CHECK (<condition>)
  ALTER COLUMN b SET DEFAULT <value>
  ALTER INDEX i IGNORED
  ENGINE = <engine>
  CONVERT TO CHARACTER SET <charset>
  ADD SYSTEM VERSIONING
  DISABLE KEYS
  DISCARD TABLESPACE
  FORCE
  ORDER BY b
  AUTO_INCREMENT = <number>
  ALGORITHM = INPLACE, LOCK = NONE
  ADD PARTITION (PARTITION p0 VALUES LESS THAN (1))
moment:
  BEFORE
  AFTER
event:
  INSERT
  UPDATE
  DELETE

show:
  *2 SHOW TABLES
  SHOW FULL TABLES LIKE <like>
  *2 DESCRIBE <table>
  SHOW CREATE TABLE <table>
  SHOW CREATE VIEW v
  SHOW COLUMNS FROM <table> WHERE <condition>
  SHOW INDEX FROM <table>
  SHOW TABLE STATUS
  SHOW DATABASES
  SHOW DATABASES WHERE <condition>
  SHOW WARNINGS
  SHOW ERRORS LIMIT <small>
  SHOW VARIABLES LIKE <like>
  SHOW PROCESSLIST
  SHOW GRANTS
  SHOW ENGINES
  SHOW COLLATION LIKE <like>
  SHOW STATUS
  SHOW TRIGGERS
  SHOW CREATE DATABASE dbbench
  SHOW <word> <word>
  *2 EXPLAIN <query>
  EXPLAIN FORMAT = JSON <query>
  EXPLAIN EXTENDED <query>
  ANALYZE <query>
  ANALYZE FORMAT = JSON <change>
  EXPLAIN <change>
  EXPLAIN FOR CONNECTION <small>
  CHECK TABLE <table>
  CHECKSUM TABLE <table>
  ANALYZE TABLE <table>
  ANALYZE TABLE t PERSISTENT FOR ALL
  OPTIMIZE TABLE <table>
  REPAIR TABLE <table> USE_FRM
  HELP <text>

setting:
  *3 SET @v = <value>
  SET @v = <value>, @w := <value>
  SET <scope?> <variable> = <value>
  SET <scope?> <variable> = DEFAULT
  SET sql_mode = <mode>
  SET NAMES <charset>
  SET CHARACTER SET <charset>
  SET TRANSACTION ISOLATION LEVEL <level>
  SET SESSION TRANSACTION READ ONLY
  SET autocommit = <small>
  SET foreign_key_checks = 0
  SET STATEMENT <variable> = <number> FOR <query>
  SET PASSWORD = PASSWORD(<text>)
  SET ROLE <name>
  USE <database>
database:
  dbbench
  mysql
  information_schema
mode:
  ''
  'STRICT_TRANS_TABLES'
  'ANSI_QUOTES'
  'ORACLE'
  'NO_BACKSLASH_ESCAPES'
  'ALLOW_INVALID_DATES'
  'TRADITIONAL'
level:
  SERIALIZABLE
  READ UNCOMMITTED
  REPEATABLE READ
scope:
  SESSION
  GLOBAL
  LOCAL
  PERSIST
  @@global.
variable:
  sql_select_limit
  timestamp
  time_zone
  div_precision_increment
  max_statement_time
  group_concat_max_len
  auto_increment_increment
  last_insert_id
  insert_id
  max_recursive_iterations
  completion_type
  transaction_isolation
  default_week_format
  lc_time_names
  sort_buffer_size
  max_connections
  general_log
  sql_safe_updates
  sql_big_selects
  identity
  unique_checks
  optimizer_switch
  hostname
  datadir
  debug_dbug
  rand_seed1
  collation_connection
  read_only
transaction:
  *2 START TRANSACTION
  START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY
  *2 BEGIN
  *2 COMMIT
  COMMIT AND CHAIN
  COMMIT RELEASE
  *2 ROLLBACK
  ROLLBACK AND CHAIN NO RELEASE
  SAVEPOINT x
  ROLLBACK TO SAVEPOINT x
  RELEASE SAVEPOINT x
  LOCK TABLES <own> WRITE, <table> READ
  UNLOCK TABLES
  XA START 'x'
  XA END 'x'
  XA PREPARE 'x'
  XA COMMIT 'x' ONE PHASE
  XA RECOVER
  FLUSH TABLES <own> WITH READ LOCK
  BACKUP LOCK t
program:
  PREPARE s FROM <text>
  PREPARE s FROM '<query>'
  EXECUTE s
  EXECUTE s USING @v
  EXECUTE IMMEDIATE 'SELECT 1'
  EXECUTE IMMEDIATE '<statement>'
  DEALLOCATE PREPARE s
  BEGIN NOT ATOMIC <statement>; END
  BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; <statement>; <statement>; END
  IF <condition> THEN <statement>; END IF
  WHILE <condition> DO <statement>; END WHILE
  x: LOOP <statement>; END LOOP
  FOR i IN 1..<small> DO <statement>; END FOR
  CALL p(<value>)
  HANDLER t OPEN
  HANDLER t READ FIRST LIMIT <small>
  HANDLER t CLOSE
  SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = <text>
  GET DIAGNOSTICS CONDITION 1 @v = MESSAGE_TEXT
  DECLARE x CURSOR FOR <query>
server:
  KILL <number>
  KILL USER CURRENT_USER
  SHUTDOWN
  FLUSH <word>
  RESET MASTER
  GRANT ALL ON <granted> TO CURRENT_USER
  GRANT SELECT ON dbbench.* TO root
  REVOKE ALL PRIVILEGES, GRANT OPTION FROM CURRENT_USER
  CREATE USER x9 IDENTIFIED BY 'x'
  DROP USER IF EXISTS <name>
  ALTER USER CURRENT_USER IDENTIFIED BY 'x'
  CREATE ROLE x9
  INSTALL SONAME 'x'
  UNINSTALL PLUGIN x
  CHANGE MASTER TO MASTER_HOST = 'x'
  PURGE BINARY LOGS BEFORE NOW()
  CACHE INDEX t IN hot
  SELECT <value> FROM t PROCEDURE ANALYSE(<number>)
granted:
  *.*
  dbbench.*
  mysql.*
files:
  SELECT <value> INTO OUTFILE '{ESCAPE}-12'
  SELECT <value> INTO DUMPFILE '{ESCAPE}-13'
  <query> INTO OUTFILE '{ESCAPE}-14' FIELDS TERMINATED BY ','
  LOAD DATA INFILE '/etc/passwd' INTO TABLE t
  LOAD XML LOCAL INFILE '/etc/passwd' INTO TABLE t
  ATTACH DATABASE '{ESCAPE}-15' AS x
  VACUUM INTO '{ESCAPE}-16'
  PRAGMA <word> = <number>
several:
  <query>; <query>
  <change>; <statement>;
  <query>; -- <query>
  ; <query>
  DELIMITER //
commented:
  <query> -- <text>
  <query> # <text>
  /* <word> */ <query>
  SELECT /*! <value>, */ <value>
  SELECT /*!99999 <value>, */ <value>
  /*M!100100 <statement> */
  SELECT /*+ MAX_EXECUTION_TIME(0) */ <value>
  <query> /* unclosed
word:
  <keyword>
"""

_WORDS = (
    "ALL ANALYZE AS BEFORE BINLOG CHANNEL COLUMNS CONNECTION CREATE CUBE DATA DEFINER DISTINCT EACH ENGINE ERRORS "
    "EVENTS EXCEPT FOR FROM FULL FUNCTION GLOBAL GROUP HAVING HOSTS IGNORE INNODB INTO LATERAL LIMIT LOGS MASTER "
    "MUTEX OF ONLY OPEN OVER PARTITION PLUGINS PRIVILEGES PROCEDURE PROFILE QUERY RETURNING ROLLUP ROW SLAVE "
    "STATUS STRAIGHT_JOIN SYSTEM_TIME TABLE TABLES TO UNION USER USING VALUES WHERE WITH XA ; , ( ) * ' ` \" @ \\ {"
)
KEYWORDS = _WORDS.split()
NESTS = (
    *(
        ("(", ")"),
        ("(SELECT ", ")"),
        ("IF(1, ", ", 0)"),
        ("CONCAT(", ")"),
        ("CASE WHEN ", " THEN 1 END"),
        ("(1, ", ")"),
    ),
    *(("NOT ", ""), ("- ", ""), ("~", ""), ("b IS NOT ", ""), ("BINARY ", ""), ("1 + ", ""), ("a LIKE ", "")),
)
"""What may stand around a value a thousand times."""
_SERVERS_FUNCTIONS = """
abs acos adddate addtime add_months aes_decrypt aes_encrypt any_value asin atan atan2 avg benchmark bin
binlog_gtid_pos bin_to_uuid bit_and bit_count bit_length bit_or bit_xor cast ceil ceiling character_length char_length
charset chr coalesce coercibility collation column_add column_check column_create column_delete column_exists column_get
column_json column_list compress concat concat_operator_oracle concat_ws connection_id contains conv convert
convert_tz cos cot count crc32 crc32c cume_dist curdate current_role current_time current_user curtime database datediff
date_add date_format date_sub dayname dayofmonth dayofweek dayofyear decode decode_histogram decode_oracle degrees
dense_rank des_decrypt des_encrypt elt encode encrypt exp export_set extract extractvalue field find_in_set first_value
floor format format_bytes format_pico_time found_rows from_base64 from_days from_unixtime get_format get_lock greatest
grouping group_concat gtid_subset hex icu_version if ifnull inet6_aton inet6_ntoa inet_aton inet_ntoa insert instr
interval isnull is_free_lock is_ipv4 is_ipv4_compat is_ipv4_mapped is_ipv6 is_used_lock is_uuid json_array json_arrayagg
json_array_append json_array_insert json_compact json_contains json_contains_path json_depth json_detailed json_equals
json_exists json_extract json_insert json_keys json_length json_loose json_merge json_merge_patch json_merge_preserve
json_normalize json_object json_objectagg json_overlaps json_pretty json_query json_quote json_remove json_replace
json_schema_valid json_search json_set json_storage_size json_table json_type json_unquote json_valid json_value lag
last_day last_insert_id lastval lcase lead least length lengthb ln load_file locate log log10 log2 lower lpad
lpad_oracle ltrim ltrim_oracle makedate maketime make_set master_gtid_wait master_pos_wait max mbrcontains md5 median
microsecond mid min mod monthname name_const natural_sort_key nextval now nth_value ntile nullif nvl nvl2 oct
octet_length old_password ord password percentile_cont percentile_disc percent_rank period_add period_diff pi point
position pow power ps_current_thread_id quarter quote radians rand random_bytes rank regexp_instr regexp_like
regexp_replace regexp_substr release_all_locks release_lock repeat replace replace_oracle reverse roles_graphml round
row_count rownum rpad rpad_oracle rtrim rtrim_oracle schema schemas sec_to_time session_user setval sformat sha sha1
sha2 sign sin sleep soundex source_pos_wait space sqrt statement_digest std stddev stddev_pop stddev_samp strcmp
str_to_date st_area st_asgeojson st_astext st_aswkb st_buffer st_collect st_contains st_convexhull st_distance
st_distance_sphere st_geomfromgeojson st_geomfromtext st_geomfromwkb st_geohash st_intersects st_isvalid st_length
st_numpoints st_simplify st_union subdate substr substring substring_index substr_oracle subtime sum system_user
sys_guid tan timediff timestampadd time_format time_to_sec to_base64 to_char to_days to_seconds trim trim_oracle
truncate ucase uncompress uncompressed_length unhex unix_timestamp updatexml upper user utc_date uuid uuid_short
uuid_to_bin validate_password_strength values variance var_pop var_samp version week weekday weekofyear weight_string
wsrep_last_seen_gtid wsrep_sync_wait_upto_gtid yearweek
"""
"""What MariaDB 10.11 lists in information_schema.sql_functions, what its grammar knows beside that, and some of MySQL
8's."""
_SQLITES_FUNCTIONS = (
    "changes char fts5 glob hex iif instr json json_each json_group_array json_patch jsonb likelihood load_extension "
    "printf randomblob readfile regexp replace round snippet sqlite_compileoption_get sqlite_version strftime "
    "total typeof unicode unlikely writefile zeroblob"
)
FUNCTION_NAMES = sorted({*_SERVERS_FUNCTIONS.split(), *_SQLITES_FUNCTIONS.split(), *FUNCTIONS, *AGGREGATES})
