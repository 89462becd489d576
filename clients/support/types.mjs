// Every built-in type that a column can have, with values that are easy to get wrong.
//
// Invariant: each type of Postgres is in `COLUMNS`, or in `IMPOSSIBLE` with the reason.
// Enforced by: `types.test.mjs` queries the types of the server.

/** Statements that create user-defined types. Run before the table is created. */
export const OWN_TYPES = `
  CREATE TYPE mood AS ENUM ('sad', 'so "so"', 'happy');
  CREATE DOMAIN percent AS numeric(5,2) CHECK (VALUE BETWEEN 0 AND 100);
  CREATE DOMAIN email AS text;
  CREATE TYPE address AS (street text, number int, known bool);
  CREATE TYPE spot AS RANGE (subtype = float8);
`;

/** Types whose values can't be stored, or depend on other objects of the database. */
export const IMPOSSIBLE = {
  gtsvector: 'an index key, without input',
  pg_node_tree: 'without input',
  pg_ndistinct: 'without input',
  pg_dependencies: 'without input',
  pg_mcv_list: 'without input',
  pg_brin_bloom_summary: 'without input',
  pg_brin_minmax_multi_summary: 'without input',
};

const NINES = `-${'9'.repeat(60)}.5`;
const BYTES = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0')).join('');
const MARKS = `quote " back \\ slash / tab \t line \n return \r bell \u0007 del \u007f`;
const SCRIPTS = 'é ß 漢字 \u{1f600} e\u0301 \u2028 \u2029 \ufeff \u200d';

/** Input texts by type. Row n has the n-th value of each type, and NULL where a type has fewer values. */
// prettier-ignore
export const COLUMNS = {
  // Numbers.
  int2: ['0', '-32768', '32767'],
  int4: ['0', '-2147483648', '2147483647'],
  int8: ['0', '-9223372036854775808', '9223372036854775807'],
  numeric: ['0', 'NaN', 'Infinity', '-Infinity', '0.000000000000000000000000000001', NINES, '1e-20', '100'],
  'numeric(10,2)': ['12345678.9', '-0.005', 'NaN', '0'],
  'numeric(3,-2)': ['12345', '-50'],
  float4: ['0', '-0', 'NaN', 'Infinity', '-Infinity', '0.1', '1.17549435e-38', '3.4028235e38', '16777217'],
  float8: ['0', '-0', 'NaN', 'Infinity', '-Infinity', '0.1', '5e-324', '1.7976931348623157e308', '0.30000000000000004',
    '1e15', '1e16'],
  money: ['0', '-92233720368547758.08', '1234567.89'],
  oid: ['0', '4294967295'],
  bool: ['t', 'f'],
  // Text.
  text: ['', MARKS, SCRIPTS, 'NULL', '\\N', '{}', '{"json": true}', 'x'.repeat(100_000), ' both ends '],
  varchar: ['', MARKS],
  'varchar(5)': ['', 'ab', '漢字漢字漢'],
  'char(6)': ['', 'ab', '漢', 'abcdef'],
  '"char"': ['a', '', '\\377'],
  name: ['a name', 'x'.repeat(63)],
  bytea: ['\\x', `\\x${BYTES}`, '\\x00'],
  mood: ['sad', 'so "so"', 'happy'],
  percent: ['0', '99.99', '5'],
  email: ['a@b', ''],
  // Dates and times.
  date: ['2024-02-29', 'infinity', '-infinity', '0044-03-15 BC', '5874897-12-31', '4713-01-01 BC'],
  time: ['00:00', '23:59:59.999999', '24:00', '12:30:00.5'],
  'time(2)': ['12:30:00.129'],
  timetz: ['00:00+00', '23:59:59.999999-15:59', '12:00+05:30'],
  timestamp: ['2024-02-29 12:30:00.123456', 'infinity', '-infinity', '0001-01-01 00:00:00 BC', '2024-01-01',
    '294276-12-31 23:59:59.999999'],
  'timestamp(3)': ['2024-02-29 12:30:00.123456'],
  timestamptz: ['2024-02-29 12:30:00.1+05:30', 'infinity', '-infinity', '0044-03-15 12:00:00+00 BC',
    '4713-01-01 00:00:00+00 BC'],
  interval: ['0', '1 year 2 mons 3 days 04:05:06.789', '-1 year -2 mons +3 days -04:05:06.000001', '178000000 years',
    '-00:00:00.1'],
  'interval day to second': ['3 days 04:05:06'],
  'interval second(1)': ['1.29'],
  // Identifiers and documents.
  uuid: ['00000000-0000-0000-0000-000000000000', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'],
  json: ['null', '{"a" :  [1, 2.0, 1e5],  "a": "twice"}', '"\\u00e9 \\n \\ud83d\\ude00"', '""', '[\n]'],
  jsonb: ['null', '{"b": 1, "a": {"c": [true, null, 1.50]}}', '"\\u00e9 \\n \\ud83d\\ude00"', '{}'],
  jsonpath: ['$', 'strict $.a[*] ? (@ > 1)'],
  xml: ['<a b="c">d &amp; e</a>', ''],
  // Networks.
  inet: ['10.0.0.1', '10.0.0.1/8', '::1', '2001:db8::ff00:42:8329/64'],
  cidr: ['10.0.0.0/8', '::/0'],
  macaddr: ['08:00:2b:01:02:03'],
  macaddr8: ['08-00-2B-01-02-03-04-05'],
  // Geometry.
  point: ['(0,-0)', '(1.5,1e300)', '(NaN,Infinity)'],
  line: ['{1,-1,0}'],
  lseg: ['[(0,0),(1,1)]'],
  box: ['(1,1),(0,0)'],
  path: ['[(0,0),(1,1)]', '((0,0),(1,1),(2,0))'],
  polygon: ['((0,0),(1,1),(2,0))'],
  circle: ['<(0,0),1.5>'],
  // Bits.
  'bit(5)': ['10101'],
  varbit: ['', '1', '1'.repeat(70)],
  // Searching.
  tsvector: ['', `'a':1A 'fat':2B,4C 'it''s':5`, `'back\\\\slash'`],
  tsquery: ['', `'fat' & ( 'rat' | !'cat':AB ) <-> 'x'`],
  // Ranges.
  int4range: ['empty', '[1,5)', '(,5]', '[1,)', '(,)'],
  int8range: ['[1,9223372036854775807)'],
  numrange: ['(1.5,2.50]', '[NaN,NaN]', '[-Infinity,Infinity]'],
  tsrange: ['["2024-01-01 10:00","2024-01-02 11:30:00.5")', '[-infinity,infinity]'],
  tstzrange: ['["2024-01-01 10:00+02",)'],
  daterange: ['[2024-01-01,2024-12-31]', '[0044-03-15 BC,infinity)'],
  spot: ['[0.1,0.2)'],
  int4multirange: ['{}', '{[1,3),[5,8)}', '{(,1),[9,)}'],
  int8multirange: ['{[1,2)}'],
  nummultirange: ['{[1.0,2.0],(3,4)}'],
  tsmultirange: ['{["2024-01-01 10:00","2024-01-02 11:30")}'],
  tstzmultirange: ['{["2024-01-01 10:00+02","2024-01-02 11:30+02")}'],
  datemultirange: ['{[2024-01-01,2024-02-01),[2024-03-01,)}'],
  spot_multirange: ['{[0.1,0.2)}'],
  // Composites.
  address: ['("Main ""St"", 1\\\\2",5,t)', '(,,)', '("",-1,f)'],
  // Postgres itself.
  pg_lsn: ['0/0', 'FFFFFFFF/FFFFFFFF', '16/B374D848'],
  pg_snapshot: ['10:20:10,14,15', '10:10:'],
  txid_snapshot: ['10:20:10,14,15'],
  xid: ['0', '4294967295'],
  xid8: ['0', '18446744073709551615'],
  cid: ['7'],
  tid: ['(0,1)', '(4294967295,65535)'],
  int2vector: ['', '1 2 3'],
  oidvector: ['', '1 2 4294967295'],
  refcursor: ['a cursor'],
  aclitem: ['=r/pg_monitor'],
  regclass: ['pg_class', '-', '99999999'],
  regcollation: ['"C"'],
  regconfig: ['english'],
  regdictionary: ['simple'],
  regnamespace: ['pg_catalog'],
  regoper: ['pg_catalog.||/'],
  regoperator: ['+(integer,integer)'],
  regproc: ['now'],
  regprocedure: ['abs(numeric)'],
  regrole: ['pg_monitor'],
  regtype: ['integer', 'timestamp with time zone'],
  // Arrays.
  'int4[]': ['{}', '{1,NULL,-3}', '{{1,2},{3,4}}', '[0:1]={5,6}', '[-1:0][2:3]={{1,2},{3,4}}'],
  'int8[][]': ['{{9223372036854775807},{NULL}}'],
  'bool[]': ['{t,f,NULL}'],
  'text[]': ['{}', '{"",NULL,"NULL",a b,"c,d","e\\"f","g\\\\h","{i}"," j "}', '{"line\nend","tab\tend"}', '{{a},{漢}}'],
  'varchar(3)[]': ['{abc,NULL}'],
  'char(3)[]': ['{a,NULL}'],
  'float8[]': ['{NaN,Infinity,-0,0.1}'],
  'numeric(6,2)[]': ['{1,NaN,-3.456}'],
  'bytea[]': ['{"\\\\x00ff",NULL}'],
  'timestamptz[]': ['{"2024-01-01 10:00+02",infinity}'],
  'interval[]': ['{"1 day","-04:05:06"}'],
  'date[]': ['{"0044-03-15 BC",2024-02-29}'],
  'uuid[]': ['{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'],
  'json[]': ['{"{\\"a\\": [1]}","null",NULL}'],
  'jsonb[]': ['{"{\\"a\\": [1]}","null",NULL}'],
  'mood[]': ['{happy,"so \\"so\\"",NULL}'],
  'percent[]': ['{1,99.99}'],
  'address[]': ['{"(\\"Main, St\\",5,t)","(,,)",NULL}'],
  'int4range[]': ['{"[1,5)",empty}'],
  'int4multirange[]': ['{"{[1,3),[5,8)}"}'],
  'box[]': ['{(1,1),(0,0);(2,2),(1,1)}'],
  'inet[]': ['{10.0.0.1/8,::1}'],
  'bit(2)[]': ['{10,01}'],
  'tsvector[]': [`{"'a':1 'b':2"}`],
  'money[]': ['{"$1.00",NULL}'],
  'pg_lsn[]': ['{16/B374D848}'],
};
