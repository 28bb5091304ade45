-- arithmetic
round(d_a, -2)
round(d93_a, -2)
f_a = 0.1F
f_a + 0.1F
CAST(0.1F AS DOUBLE)
d_a < 0.1F
d_a = 16777217F
3.4028234663852886e38F
-1e-45F
ti_a = -128Y
ti_a + 127Y
si_a = -32768S
bi_a = -9223372036854775808L
i_a div i_b
bi_a div bi_b
ti_a div si_b
d52_a div d93_b
bi_a div i_b
i_a & i_b
bi_a | i_b
ti_a ^ si_b
~bi_a
~ti_a
i_a << i_b
bi_a >> i_b
shiftright(i_a, i_b)
shiftrightunsigned(bi_a, i_b)
shiftrightunsigned(i_a, i_b)
shiftleft(ti_a, 3)
NULL + i_a
mod(i_a, i_b)
num / 2
num * d52_a
-num
hex(bi_a)
hex(s_a)
hex(b_a)
greatest(i_a, d_b, d52_b)
1 - d380_a
greatest(d380_a, 99999999999999999999999999999999999999)
d380_a = -9999999999999999999999999999999999999.9

-- logic
equal_null(i_a, i_b)
nullifzero(i_a)
zeroifnull(i_a)
zeroifnull(d93_a)
nullifzero(d_a)
bo_a AND bo_b
bo_a OR bo_b
NOT bo_a
bo_a = bo_b
bo_a IS TRUE
bo_a IS NOT FALSE
bo_a IS UNKNOWN
i_a IS NULL
s_a IS NOT NULL
isnull(i_a)
isnotnull(i_a)
bo_a < bo_b
s_a = s_b
s_a < u_b
s_a <=> s_b
b_a < b_b
da_a < ts_b
da_a = '2000-02-29'
ts_a > '2010-12-01'
da_a = tim
s_a IN ('a', 'abc', 'ß')
s_a NOT IN ('a', NULL)
i_a IN (bi_b, ti_a)
d_a IN (0.0D, cast('NaN' AS DOUBLE))
CASE WHEN i_a > 0 THEN 'p' WHEN i_a < 0 THEN s_a END
CASE i_a WHEN 1 THEN bi_a ELSE d52_a END
if(bo_a, i_a, d52_b)
coalesce(s_a, u_b, 'z')
nvl(i_a, 0)
ifnull(s_a, 'n')
nvl2(i_a, s_a, u_a)
nullif(s_a, u_b)
ai_a = ai_b
ai_a < ai_b
st_a = st_b
st_a < st_b
ad_a <= ad_b
bo_a <=> NULL
i_a IS DISTINCT FROM i_b
ts_a = ts_b
i_b + CAST(num AS INT)
CAST(num AS INT) + i_b
CAST(num AS INT) + CAST(tim AS INT)
i_b / CAST(num AS INT)
CAST(num AS INT) / zero
i_a / zero
i_a % zero
bo_b AND CAST(num AS INT) > 0
CAST(num AS INT) > 0 AND bo_b
bo_b OR CAST(num AS INT) > 0
CAST(num AS INT) > 0 OR bo_b
coalesce(i_b, CAST(num AS INT))
coalesce(CAST(num AS INT), i_b)
if(bo_b, CAST(num AS INT), i_b)
if(CAST(num AS INT) > 0, 1, 2)
CASE WHEN bo_b THEN 1 WHEN CAST(num AS INT) > 0 THEN 2 ELSE i_b + 1 END
i_b IN (CAST(num AS INT), 1)
i_b BETWEEN CAST(num AS INT) AND 10
concat(s_b, CAST(CAST(num AS INT) AS STRING))
greatest(i_b, CAST(num AS INT))
nullif(CAST(num AS INT), i_b)
substring(s_b, CAST(num AS INT), 2)
substring(s_b, i_b, CAST(num AS INT))
NOT (CAST(num AS BOOLEAN) AND bo_b)
(CAST(num AS INT) > 0) IS NULL
CAST(num AS INT) <=> i_b
ai_b[CAST(num AS INT)]
array(i_b, CAST(num AS INT))
named_struct('x', CAST(num AS INT), 'y', i_b)
i_a * i_b * i_a
(bi_a + bi_b) / (i_a - i_b)
concat_ws(u_b, CAST(CAST(num AS INT) AS STRING), s_b)
if(bo_b, 1 / zero, 2)
make_date(i_b, CAST(num AS INT), 1)
(i_b + CAST(num AS INT)) IS NULL
coalesce(i_b + CAST(num AS INT), 0)

-- text
split_part(s_a, u_b, ti_b)
split_part(s_a, ',', 2)
split_part(s_a, ',', -1)
bit_length(s_a)
upper(s_a)
lower(s_a)
initcap(s_a)
length(s_a)
octet_length(s_a)
trim(s_a)
ltrim(s_a)
rtrim(s_a)
btrim(s_a)
btrim(s_a, u_b)
TRIM(BOTH 'a' FROM s_a)
TRIM(LEADING FROM s_a)
substring(s_a, i_b)
substring(s_a, i_b, 2)
substring(s_a, 2, i_b)
substring(s_a, i_a, i_b)
left(s_a, ti_b)
right(s_a, ti_b)
lpad(s_a, ti_b, u_b)
rpad(s_a, 5, u_b)
lpad(s_a, 6)
rpad(s_a, ti_b)
repeat(s_a, ti_b)
replace(s_a, u_b, '-')
replace(s_a, u_b)
translate(s_a, 'abX', 'z')
translate(s_a, u_b, 'yz')
instr(s_a, u_b)
locate(u_b, s_a)
locate(u_b, s_a, i_b)
position(u_b IN s_a)
contains(s_a, u_b)
startswith(s_a, u_b)
endswith(s_a, u_b)
substring_index(s_a, u_b, 1)
substring_index(s_a, u_b, -1)
substring_index(s_a, u_b, ti_b)
levenshtein(s_a, u_b)
ascii(s_a)
chr(bi_a)
chr(i_a)
unhex(s_a)
unhex(num)
base64(b_a)
base64(s_a)
md5(s_a)
md5(b_a)
sha1(s_a)
sha2(s_a, 256)
sha2(s_a, 512)
sha2(s_a, 0)
crc32(s_a)
concat(s_a, u_b)
s_a || u_b || '!'
concat(i_a, s_a, bo_b, da_a)
concat_ws(u_b, s_a, s_b)
concat_ws('-', s_a, as_b, 'x')
concat_ws(',', as_a)
reverse(s_a)
split(s_a, ',')
split(s_a, 'X', 2)
split(s_a, '')
split(s_a, 'b+')
split(s_a, '[,.]')
split(s_a, '(?=b)')
split(s_a, ',', 0)
regexp_extract(s_a, '([a-z])(.)', 2)
regexp_extract(s_a, 'x*', 0)
regexp_extract(tim, '(\\d+)-(\\d+)', 1)
regexp_replace(s_a, '[aX]', '<$0>')
regexp_replace(s_a, '(b)|(c)', '$2-')
regexp_replace(s_a, '^ *', '-')
regexp_replace(s_a, '\\.', '')
s_a RLIKE '^a'
s_a RLIKE '[{}]|\\{|}'
s_a RLIKE '(?<!\\w)b{1,2}(?!\\w)'
sha2(s_a, 0)
sha2(s_a, 224)
sha2(s_a, 384)
sha2(s_a, 512)
s_a RLIKE 'c,?$'
s_a RLIKE '\\w+'
tim RLIKE '\\s$'
s_a RLIKE '(?i)ABC'
s_a NOT RLIKE '.b'
s_a LIKE 'a%'
s_a LIKE '%b_'
s_a NOT LIKE '_'
s_a LIKE 'a.b.c'
s_a ILIKE 'a%'
u_a LIKE 'a\\_b'
u_a LIKE '\\%'
u_a LIKE 'a!_b' ESCAPE '!'
s_a LIKE ''
s_a LIKE 'aX%c'
s_a = 'it''s'
concat('a\\n', s_a)
upper(i_a)
length(concat(s_a, u_b))
concat('😀', s_a)
split(s_a, ',')[0]
size(split(s_a, ','))
s_a RLIKE '[^,]+,'

-- times
dayname(da_a)
monthname(ts_a)
date_part('week', da_a)
date_part('SECOND', ts_a)
date_trunc('month', da_a)
date_add(da_a, i_b)
date_add(da_a, 1)
date_sub(da_a, ti_b)
da_a + ti_b
ti_b + da_a
da_a - 7
datediff(da_a, da_b)
datediff(ts_a, da_b)
add_months(da_a, ti_b)
add_months(da_a, 1)
months_between(ts_a, ts_b)
months_between(ts_a, ts_b, false)
last_day(da_a)
next_day(da_a, 'MON')
next_day(da_a, 'sunday')
make_date(i_a, ti_b, 1)
make_date(2020, ti_a, ti_b)
make_date(1582, 2, i_a)
to_date(tim)
to_timestamp(tim)
to_date(ts_a)
to_date(tim, 'yyyy-MM-dd')
to_timestamp(tim, 'yyyy-MM-dd HH:mm:ss')
to_timestamp(tim, 'dd/MM/yyyy HH:mm')
to_timestamp(tim, 'yyyy-M-d')
to_timestamp(tim, "yyyy-MM-dd'T'HH:mm:ss.SSS")
date_format(ts_a, 'yyyy-MM-dd HH:mm:ss.SSS')
date_format(da_a, 'dd/MM/yy')
date_format(ts_a, "yyyy'W'DDD H")
unix_timestamp(ts_a)
unix_seconds(ts_a)
unix_millis(ts_a)
unix_micros(ts_a)
unix_date(da_a)
date_from_unix_date(i_a)
timestamp_seconds(i_a)
timestamp_seconds(bi_a)
timestamp_millis(bi_a)
timestamp_micros(i_a)
from_utc_timestamp(ts_a, 'Europe/Berlin')
to_utc_timestamp(ts_a, 'America/New_York')
to_utc_timestamp(ts_a, 'Europe/London')
ts_a + INTERVAL 1 HOUR
ts_a - INTERVAL '1' DAY
INTERVAL 90 MINUTES + ts_a
ts_a + INTERVAL '1 02:03:04.5' DAY TO SECOND
ts_a + INTERVAL 1 MONTH
ts_a - INTERVAL 1 YEAR
da_a + INTERVAL 1 DAY
da_a - INTERVAL 2 WEEKS
da_a + INTERVAL 1 MONTH
da_a + INTERVAL 3 HOURS
ts_a + INTERVAL 1 HOUR 30 MINUTES
ts_a - ts_b > INTERVAL 1 DAY
da_a - da_b < INTERVAL 30 DAYS
da_a - da_b = INTERVAL 24 HOURS
ts_a - da_b >= INTERVAL '-1' HOUR
EXTRACT(YEAR FROM da_a)
EXTRACT(DOW FROM ts_a)
year(tim)
hour(tim)
ts_a BETWEEN '2000-01-01' AND TIMESTAMP '2021-01-01 00:00:00'
DATE '2020-02-29' = da_a
DATE '0001-01-01' < da_a
TIMESTAMP '0999-01-02 03:04:05.000006Z' < ts_a
datediff(DAY, ts_a, ts_b)
ts_a + INTERVAL -5 SECONDS

-- collections
array_prepend(ai_a, i_b)
map_entries(m_a)
array(i_a, i_b, 1)
array(s_a, 'x')
map('k', i_a, 'l', i_b)
named_struct('p', i_a, 'q', s_b)
struct(i_a, s_b AS t)
named_struct('p', i_a).p
st_a.n
st_a.t
size(ai_a)
size(m_a)
ai_a[ti_b]
ai_a[0]
as_a[si_b]
m_a['a']
m_a[u_b]
mi_a[i_b]
element_at(ai_a, 1)
element_at(ai_a, ti_b)
element_at(m_a, 'b')
element_at(m_a, s_b)
try_element_at(ai_a, ti_b)
try_element_at(m_a, 'a')
get(ai_a, ti_b)
array_contains(ai_a, ti_b)
array_contains(as_a, u_b)
array_contains(ad_a, d_b)
array_position(ai_a, i_b)
array_position(as_a, 'a')
array_remove(ai_a, i_b)
array_remove(as_a, 'a')
array_append(ai_a, i_b)
array_append(ai_a, bi_b)
array_distinct(ai_a)
array_distinct(ad_a)
array_union(ai_a, ai_b)
array_intersect(ai_a, ai_b)
array_except(ai_a, ai_b)
arrays_overlap(ai_a, ai_b)
arrays_overlap(as_a, as_b)
array_max(ai_a)
array_min(ai_a)
array_max(ad_a)
array_min(as_a)
array_sort(ai_a)
array_sort(as_a)
array_sort(ad_a)
sort_array(ai_a)
sort_array(ai_a, false)
sort_array(ad_a, false)
array_join(as_a, ',')
array_join(as_a, u_b, '?')
array_join(ai_a, ' ')
array_repeat(s_a, 2)
array_repeat(s_a, -1)
array_union(ad_a, ad_b)
array_except(ad_a, ad_b)
array_intersect(ad_a, ad_b)
arrays_overlap(ad_a, ad_b)
array_position(ad_a, d_b)
ad_a < ad_b
array_append(ad_a, d_b)
array_repeat(i_a, 2)
array_compact(ai_a)
array_compact(as_a)
slice(ai_a, ti_b, 2)
slice(ai_a, 1, ti_b)
flatten(aa_a)
reverse(ai_a)
concat(ai_a, ai_b)
concat(ai_a, array(bi_b))
map_keys(m_a)
map_values(m_a)
map_contains_key(m_a, u_b)
map_contains_key(m_a, 'a')
transform(ai_a, x -> x * 2)
transform(ai_a, (x, i) -> x - i)
transform(as_a, x -> upper(x))
transform(as_a, x -> CAST(x AS INT))
transform(ai_a, x -> x > i_b)
filter(ai_a, x -> x > 1)
filter(ai_a, x -> 6 / x > 2)
exists(ai_a, x -> x > 2)
exists(as_a, x -> x = u_b)
forall(ai_a, x -> x > 0)
forall(as_a, x -> x IS NOT NULL)
transform(aa_a, x -> size(x))
ai_a IS NULL
size(array_distinct(concat(ai_a, ai_b)))
coalesce(ai_a, array(1))
if(bo_a, ai_a, array(bi_b))
transform(ai_a, x -> x + 1)[0]
CAST(ai_a AS ARRAY<STRING>)
CAST(st_a AS STRUCT<p: BIGINT, q: STRING>)
CAST(ai_a AS ARRAY<DOUBLE>)
CAST(m_a AS MAP<STRING, STRING>)
try_cast(ai_a AS ARRAY<STRING>)
transform(as_a, (x, i) -> CAST(x AS INT) + i)
