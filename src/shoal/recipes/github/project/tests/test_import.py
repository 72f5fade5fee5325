"""Rows of the earlier system: their status decides what is still done for them."""

import pytest

from import_developers import NoUsername, check_rows, fields, row_items

HEADER = "username,name,followers,hireable,enrichment_status,profiled_at,last_error\n"


@pytest.mark.parametrize(
    ("row", "status", "stages"),
    [
        ("A-b,,,,INITIAL,,", "INITIAL", ["profile"]),
        ("A-b,Bo,3,t,PROFILED,2024-01-01,", "PROFILED", ["profile", "social"]),
        ("A-b,Bo,3,t,PROCESSING,2024-01-01,", "PROFILED", ["profile", "social"]),
        ("A-b,,,,PROCESSING,,", "INITIAL", ["profile"]),
        ("A-b,Bo,3,f,ENHANCED,2024-01-01,", "ENHANCED", ["profile"]),
        ("A-b,Bo,3,f,FAILED,,404", "FAILED", ["profile"]),
    ],
)
def test_the_status_of_a_row(tmp_path, row, status, stages):
    file = tmp_path / "developers.csv"
    file.write_text(HEADER + row + "\n")
    items, found, nameless = check_rows(str(file), retry_failed=False)
    assert (dict(found), nameless) == ({status: 1}, [])
    assert [item.stage for item in items] == stages
    assert {item.key for item in items} == {"a-b"}
    payload = items[0].payload
    assert payload["username"] == "A-b"
    assert payload.get("status", "INITIAL") == status
    if status in ("PROFILED", "ENHANCED"):
        assert (payload["row"]["followers"], payload["row"]["hireable"]) == (3, status == "PROFILED")
        assert items[0].priority < 0, "before developers that must be asked for"


def test_failed_rows_may_be_tried_again():
    row = {"username": "a", "enrichment_status": "FAILED", "retry_count": "3"}
    status, (item,) = row_items(row, retry_failed=True)
    before = {"scraped_at": None, "retry_count": 3, "last_error": None}
    assert (status, item.payload) == ("INITIAL", {"username": "a", "imported": before})
    with pytest.raises(NoUsername):
        row_items({"username": " ", "enrichment_status": "INITIAL"})


def test_values_as_databases_and_programs_write_them():
    row = {
        "followers": "3.0",
        "following": 4,
        "hireable": 0,
        "retry_count": "2",
        "created_at": "2024-02-01 09:30:00+02",
    }
    found = fields({**row, "profiled_at": "2024-02-01 08:00:00", "updated_at": ""})
    assert (found["followers"], found["following"], found["hireable"], found["retry_count"]) == (3, 4, False, 2)
    assert found["created_at"] == "2024-02-01T07:30:00+00:00"
    assert found["profiled_at"] == "2024-02-01T08:00:00+00:00", "without a zone it is UTC"
    assert found["updated_at"] is None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("followers", "many"),
        ("followers", "3.5"),
        ("followers", "-1"),
        ("followers", "9999999999"),
        ("retry_count", "nan"),
        ("created_at", "yesterday"),
        ("enhanced_at", "2024-13-01"),
        ("hireable", "perhaps"),
        ("enrichment_status", "DONE"),
    ],
)
def test_rows_that_cannot_be_imported_are_named(tmp_path, column, value):
    file = tmp_path / "developers.csv"
    file.write_text(f"username,{column}\ngood,\nbad,{value}\n")
    with pytest.raises(ValueError, match=f"remove first: 1\n  row 2 .bad.: {column} .*'{value}'"):
        check_rows(str(file), retry_failed=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("A-b,Bo,3,t,PROFILED,2024-01-01,\n", "has no column username"),
        ("username;name\nA-b;Bo\n", "has no column username"),
        (HEADER, "has no row with a username"),
        (HEADER + ",Bo,,,,,\n", "has no row with a username"),
    ],
)
def test_a_file_without_a_row_that_can_be_imported(tmp_path, text, said):
    file = tmp_path / "developers.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"Nothing was imported: .*{said}"):
        check_rows(str(file), retry_failed=False)
