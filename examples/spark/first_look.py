"""A first look at a stream with Spark: cells for a notebook or an editor, or a program.

    python examples/spark/first_look.py --config examples/flights

It reads the topic that the folder's stream FLIGHTS names, and writes nothing. No service need run. With an index, which a
service makes, less is read.
"""

# %%
from __future__ import annotations

import argparse

from spark.counts import explain_counts, overlay_counts
from spark.session import overlay_session
from spark.tables import create_table

parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("--config", default="examples/flights", help="config folder with the stream FLIGHTS")
parser.add_argument("--master", help="Spark's master; spark-submit's, else local[*]")
given = parser.parse_args()

# %% A session. Each stream of the folder is a table of the database `overlay`.
spark = overlay_session("first look", given.master, config=given.config)
spark.sql("SHOW TABLES IN overlay").show()
spark.sql("DESCRIBE overlay.flights").show(truncate=False)

# %% SQL over the log, as it is now. This reads every record, since Spark does not tell which it needs.
departures = spark.sql("""
    SELECT carrier, count(*) AS flights, round(avg(dep_delay), 1) AS mean_delay
    FROM overlay.flights
    WHERE subject LIKE 'flights.JFK.%'
    GROUP BY carrier
    ORDER BY flights DESC
""")
departures.show()

# %% A table of its own for a question. Its subjects, its filter and its columns are applied where the log is read, so
# that Spark gets the late flights alone, with two columns.
flights = {"config": given.config, "stream": "FLIGHTS"}
create_table(
    spark, "late", {**flights, "subjects": "flights.JFK.>", "sql": "dep_delay > 60", "columns": "carrier, dep_delay"}
)
late = spark.sql("SELECT carrier, count(*) AS late, max(dep_delay) AS longest FROM overlay.late GROUP BY carrier")
late.orderBy("carrier").show()

# %% Tables can be joined like any others.
departures.createOrReplaceTempView("departures")
share = spark.sql("""
    SELECT d.carrier, d.flights, count(l.carrier) AS late, round(100 * count(l.carrier) / d.flights, 1) AS percent
    FROM departures d LEFT JOIN overlay.late l ON l.carrier = d.carrier
    GROUP BY d.carrier, d.flights
    ORDER BY percent DESC
""")
share.show()

# %% How many records has each airport? Chunk headers answer that where they can, and the rest is read. The plan shows a
# LocalTableScan for what was answered, and a BatchScan for what is read.
airports = overlay_counts(spark, flights, tokens=2)
airports.orderBy("prefix").show()
print(explain_counts(flights))
airports.explain()
