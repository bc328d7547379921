import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.cluster.schedulers.slurm import MOST_HOSTS, expand_hosts
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("gpu[001-004,7],login", ["gpu001", "gpu002", "gpu003", "gpu004", "gpu7", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("a[1-2]b[0-1]", ["a1b0", "a1b1", "a2b0", "a2b1"]),
        ("r[1-2]-x", ["r1-x", "r2-x"]),
        ("[1-2]", ["1", "2"]),
        ("a.b.c,d", ["a.b.c", "d"]),
    ],
)
def test_a_node_list_is_expanded_in_order(text, hosts):
    assert expand_hosts(text, "V") == hosts


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,,b", "a[", "a]", "a[]", "a[1", "a[x]", "a[3-1]", "a[1-2-3]", "a[[1]]", "a b", "a[1 - 2]", "a\nb",
     f"a[0-{MOST_HOSTS}]", "a[0-999999999]", "a[0-999][0-999]", ",".join(["a[0-65535]"] * 2), "a[0-9999999999]"],
)  # fmt: skip
def test_a_malformed_or_endless_node_list_is_refused(text):
    with pytest.raises(ConfigError, match=r"^V: expected"):
        expand_hosts(text, "V")


@given(
    st.lists(st.tuples(st.from_regex(r"[a-z]{1,4}", fullmatch=True), st.integers(0, 50), st.integers(0, 9)))
)
def test_it_undoes_the_folding_of_consecutive_names(groups):
    text = ",".join(f"{stem}[{first:03d}-{first + more:03d}]" for stem, first, more in groups)
    names = [f"{stem}{first + i:03d}" for stem, first, more in groups for i in range(more + 1)]
    if names:
        assert expand_hosts(text, "V") == names
