"""Rows of the earlier system: their status decides what is still done for them."""

import pytest

from import_developers import NoUsername, read_rows, row_item

HEADER = "username,name,followers,hireable,enrichment_status,profiled_at,last_error\n"


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ("A-b,,,,INITIAL,,", "INITIAL"),
        ("A-b,Bo,3,t,PROFILED,2024-01-01,", "PROFILED"),
        ("A-b,Bo,3,t,PROCESSING,2024-01-01,", "PROFILED"),
        ("A-b,,,,PROCESSING,,", "INITIAL"),
        ("A-b,Bo,3,f,ENHANCED,2024-01-01,", "ENHANCED"),
        ("A-b,,,,FAILED,,404", "FAILED"),
    ],
)
def test_the_status_of_a_row(tmp_path, row, status):
    file = tmp_path / "developers.csv"
    file.write_text(HEADER + row + "\n")
    (read,) = read_rows(str(file))
    item, found = row_item(read)
    assert (item.key, found) == ("a-b", status)
    assert item.payload["username"] == "A-b"
    assert item.payload.get("status", "INITIAL") == status
    if status in ("PROFILED", "ENHANCED"):
        assert (item.payload["row"]["followers"], item.payload["row"]["hireable"]) == (3, status == "PROFILED")


def test_failed_rows_may_be_tried_again():
    assert row_item({"username": "a", "enrichment_status": "FAILED"}, retry_failed=True)[1] == "INITIAL"
    with pytest.raises(NoUsername):
        row_item({"username": " ", "enrichment_status": "INITIAL"})
    with pytest.raises(ValueError, match="known are INITIAL"):
        row_item({"username": "a", "enrichment_status": "DONE"})
