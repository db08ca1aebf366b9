-- The 22 queries of TPC-H with the parameters that its specification validates, in our own words.

-- 1
select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
  sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
  sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge,
  avg(l_quantity) as avg_qty, avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc,
  count(*) as count_order
from lineitem
where l_shipdate <= date'1998-12-01' - interval 90 days
group by l_returnflag, l_linestatus
order by l_returnflag, l_linestatus;

-- 2
with offers as (
  select * from part
  join partsupp on p_partkey = ps_partkey
  join supplier on s_suppkey = ps_suppkey
  join nation on s_nationkey = n_nationkey
  join region on n_regionkey = r_regionkey
  where r_name = 'EUROPE')
select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
from offers
where p_size = 15 and p_type like '%BRASS' and ps_supplycost = (
  select min(ps_supplycost) from partsupp
  join supplier on s_suppkey = ps_suppkey
  join nation on s_nationkey = n_nationkey
  join region on n_regionkey = r_regionkey
  where ps_partkey = offers.p_partkey and r_name = 'EUROPE')
order by s_acctbal desc, n_name, s_name, p_partkey
limit 100;

-- 3
select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer
join orders on c_custkey = o_custkey
join lineitem on l_orderkey = o_orderkey
where c_mktsegment = 'BUILDING' and o_orderdate < date'1995-03-15' and l_shipdate > date'1995-03-15'
group by l_orderkey, o_orderdate, o_shippriority
order by revenue desc, o_orderdate
limit 10;

-- 4
select o_orderpriority, count(*) as order_count
from orders
where o_orderdate >= date'1993-07-01' and o_orderdate < date'1993-07-01' + interval 3 months
  and exists (select 1 from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
group by o_orderpriority
order by o_orderpriority;

-- 5
select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer
join orders on c_custkey = o_custkey
join lineitem on l_orderkey = o_orderkey
join supplier on l_suppkey = s_suppkey and c_nationkey = s_nationkey
join nation on s_nationkey = n_nationkey
join region on n_regionkey = r_regionkey
where r_name = 'ASIA' and o_orderdate >= date'1994-01-01'
  and o_orderdate < date'1994-01-01' + interval 1 year
group by n_name
order by revenue desc;

-- 6
select sum(l_extendedprice * l_discount) as revenue
from lineitem
where l_shipdate >= date'1994-01-01' and l_shipdate < date'1994-01-01' + interval 1 year
  and l_discount between 0.06 - 0.01 and 0.06 + 0.01 and l_quantity < 24;

-- 7
with shipping as (
  select supplied.n_name as supp_nation, bought.n_name as cust_nation, year(l_shipdate) as l_year,
    l_extendedprice * (1 - l_discount) as volume
  from supplier
  join lineitem on s_suppkey = l_suppkey
  join orders on o_orderkey = l_orderkey
  join customer on c_custkey = o_custkey
  join nation supplied on s_nationkey = supplied.n_nationkey
  join nation bought on c_nationkey = bought.n_nationkey
  where l_shipdate between date'1995-01-01' and date'1996-12-31'
    and (supplied.n_name = 'FRANCE' and bought.n_name = 'GERMANY'
      or supplied.n_name = 'GERMANY' and bought.n_name = 'FRANCE'))
select supp_nation, cust_nation, l_year, sum(volume) as revenue
from shipping
group by supp_nation, cust_nation, l_year
order by supp_nation, cust_nation, l_year;

-- 8
with sales as (
  select year(o_orderdate) as o_year, l_extendedprice * (1 - l_discount) as volume,
    supplied.n_name as nation
  from part
  join lineitem on p_partkey = l_partkey
  join supplier on s_suppkey = l_suppkey
  join orders on l_orderkey = o_orderkey
  join customer on o_custkey = c_custkey
  join nation bought on c_nationkey = bought.n_nationkey
  join region on bought.n_regionkey = r_regionkey
  join nation supplied on s_nationkey = supplied.n_nationkey
  where r_name = 'AMERICA' and p_type = 'ECONOMY ANODIZED STEEL'
    and o_orderdate between date'1995-01-01' and date'1996-12-31')
select o_year, sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) as mkt_share
from sales
group by o_year
order by o_year;

-- 9
with profits as (
  select n_name as nation, year(o_orderdate) as o_year,
    l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount
  from part
  join lineitem on p_partkey = l_partkey
  join supplier on s_suppkey = l_suppkey
  join partsupp on ps_suppkey = l_suppkey and ps_partkey = l_partkey
  join orders on o_orderkey = l_orderkey
  join nation on s_nationkey = n_nationkey
  where p_name like '%green%')
select nation, o_year, sum(amount) as sum_profit
from profits
group by nation, o_year
order by nation, o_year desc;

-- 10
select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal, n_name,
  c_address, c_phone, c_comment
from customer
join orders on c_custkey = o_custkey
join lineitem on l_orderkey = o_orderkey
join nation on c_nationkey = n_nationkey
where o_orderdate >= date'1993-10-01' and o_orderdate < date'1993-10-01' + interval 3 months
  and l_returnflag = 'R'
group by c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
order by revenue desc
limit 20;

-- 11
with stock as (
  select ps_partkey, ps_supplycost * ps_availqty as worth
  from partsupp
  join supplier on ps_suppkey = s_suppkey
  join nation on s_nationkey = n_nationkey
  where n_name = 'GERMANY')
select ps_partkey, sum(worth) as worth
from stock
group by ps_partkey
having sum(worth) > (select sum(worth) * 0.0001 from stock)
order by worth desc;

-- 12
select l_shipmode,
  sum(case when o_orderpriority in ('1-URGENT', '2-HIGH') then 1 else 0 end) as high_line_count,
  sum(case when o_orderpriority not in ('1-URGENT', '2-HIGH') then 1 else 0 end) as low_line_count
from orders
join lineitem on o_orderkey = l_orderkey
where l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate and l_shipdate < l_commitdate
  and l_receiptdate >= date'1994-01-01' and l_receiptdate < date'1994-01-01' + interval 1 year
group by l_shipmode
order by l_shipmode;

-- 13
with counted as (
  select c_custkey, count(o_orderkey) as c_count
  from customer
  left join orders on c_custkey = o_custkey and o_comment not like '%special%requests%'
  group by c_custkey)
select c_count, count(*) as custdist
from counted
group by c_count
order by custdist desc, c_count desc;

-- 14
select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end)
  / sum(l_extendedprice * (1 - l_discount)) as promo_revenue
from lineitem
join part on l_partkey = p_partkey
where l_shipdate >= date'1995-09-01' and l_shipdate < date'1995-09-01' + interval 1 month;

-- 15
with revenue as (
  select l_suppkey as supplier_no, sum(l_extendedprice * (1 - l_discount)) as total_revenue
  from lineitem
  where l_shipdate >= date'1996-01-01' and l_shipdate < date'1996-01-01' + interval 3 months
  group by l_suppkey)
select s_suppkey, s_name, s_address, s_phone, total_revenue
from supplier
join revenue on s_suppkey = supplier_no
where total_revenue = (select max(total_revenue) from revenue)
order by s_suppkey;

-- 16
select p_brand, p_type, p_size, count(distinct ps_suppkey) as supplier_cnt
from partsupp
join part on p_partkey = ps_partkey
where p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%'
  and p_size in (49, 14, 23, 45, 19, 3, 36, 9)
  and ps_suppkey not in (
    select s_suppkey from supplier where s_comment like '%Customer%Complaints%')
group by p_brand, p_type, p_size
order by supplier_cnt desc, p_brand, p_type, p_size;

-- 17
select sum(l_extendedprice) / 7.0 as avg_yearly
from lineitem
join part on p_partkey = l_partkey
where p_brand = 'Brand#23' and p_container = 'MED BOX'
  and l_quantity < (select 0.2 * avg(l_quantity) from lineitem where l_partkey = p_partkey);

-- 18
select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) as quantity
from customer
join orders on c_custkey = o_custkey
join lineitem on o_orderkey = l_orderkey
where o_orderkey in (
  select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 300)
group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
order by o_totalprice desc, o_orderdate
limit 100;

-- 19
select sum(l_extendedprice * (1 - l_discount)) as revenue
from lineitem
join part on p_partkey = l_partkey
where l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON' and (
  p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
    and l_quantity between 1 and 11 and p_size between 1 and 5
  or p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
    and l_quantity between 10 and 20 and p_size between 1 and 10
  or p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
    and l_quantity between 20 and 30 and p_size between 1 and 15);

-- 20
select s_name, s_address
from supplier
join nation on s_nationkey = n_nationkey
where n_name = 'CANADA' and s_suppkey in (
  select ps_suppkey from partsupp
  where ps_partkey in (select p_partkey from part where p_name like 'forest%')
    and ps_availqty > (
      select 0.5 * sum(l_quantity) from lineitem
      where l_partkey = ps_partkey and l_suppkey = ps_suppkey
        and l_shipdate >= date'1994-01-01' and l_shipdate < date'1994-01-01' + interval 1 year))
order by s_name;

-- 21
select s_name, count(*) as numwait
from supplier
join lineitem late on s_suppkey = late.l_suppkey
join orders on o_orderkey = late.l_orderkey
join nation on s_nationkey = n_nationkey
where o_orderstatus = 'F' and n_name = 'SAUDI ARABIA' and late.l_receiptdate > late.l_commitdate
  and exists (
    select 1 from lineitem other
    where other.l_orderkey = late.l_orderkey and other.l_suppkey <> late.l_suppkey)
  and not exists (
    select 1 from lineitem other
    where other.l_orderkey = late.l_orderkey and other.l_suppkey <> late.l_suppkey
      and other.l_receiptdate > other.l_commitdate)
group by s_name
order by numwait desc, s_name
limit 100;

-- 22
with known as (
  select substring(c_phone, 1, 2) as cntrycode, c_acctbal, c_custkey
  from customer
  where substring(c_phone, 1, 2) in ('13', '31', '23', '29', '30', '18', '17'))
select cntrycode, count(*) as numcust, sum(c_acctbal) as totacctbal
from known
where c_acctbal > (select avg(c_acctbal) from known where c_acctbal > 0.00)
  and not exists (select 1 from orders where o_custkey = c_custkey)
group by cntrycode
order by cntrycode;
