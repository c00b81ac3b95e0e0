"""Grouping by packed whole numbers says what polars' own group-by says."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracekit.grouping import counted_by, summed_by

INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-3, 3)
ROW = st.tuples(
    st.none() | SMALL,
    st.none() | st.integers(0, 2**32 - 1),
    SMALL | INT64,
    st.integers(-(2**40), 2**40),
)
SCHEMA = {"layer": pl.Int16(), "group": pl.UInt32(), "dur_ns": pl.Int64(), "value": pl.Int64()}


@given(st.lists(ROW, max_size=40), st.sampled_from([["layer"], ["group", "layer"], ["layer", "dur_ns", "group"]]))
def test_groups_are_those_of_polars(rows, by):
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    counts = frame.group_by(by).agg(pl.len().cast(pl.UInt64).alias("n"))
    sums = frame.group_by(by).agg(pl.col("value").sum())
    assert_frame_equal(counted_by(frame, by).select(*by, "n"), counts, check_row_order=False)
    assert_frame_equal(summed_by(frame, by, "value").select(*by, "value"), sums, check_row_order=False)


@pytest.mark.parametrize("dtype", [pl.Categorical(), pl.UInt64()])
def test_what_does_not_fit_is_grouped_by_polars(dtype):
    values = ["a", "b", "a"] if dtype == pl.Categorical() else [2**64 - 1, 0, 2**64 - 1]
    frame = pl.DataFrame({"name": pl.Series(values, dtype=dtype), "value": [1, 2, 4]})
    assert sorted(counted_by(frame, ["name"])["n"]) == [1, 2]
    assert sorted(summed_by(frame, ["name"], "value")["value"]) == [2, 5]
