"""Options of the command line replace values of a section, or name the mistake in one line."""

import pytest

from tfdist.engines.options_into_section import with_options
from tfdist.errors import ConfigError
from tfdist.trainer.sections.engine import (
    ComposeSection,
    KubernetesSection,
    RaySection,
    SshSection,
    VertexSection,
)


def test_values_are_written_as_in_yaml():
    section = with_options(
        ComposeSection(), {"restarts": "5", "internal": "false", "volumes": "[a:/a, b:/b]"}
    )
    assert (section.restarts, section.internal, section.volumes) == (5, False, ["a:/a", "b:/b"])


@pytest.mark.parametrize("text", ["1.0", "007", "true", "null", "", "[1", "a: b", "x\ny: 1"])
def test_a_key_of_texts_takes_any_text(text):
    expected = None if text == "null" else text
    assert with_options(ComposeSection(), {"runs": text}).runs == expected
    assert with_options(ComposeSection(), {"image": text}).image == text


@pytest.mark.parametrize("text", ["1.10", "01234", "1e3", "true", "null", "", "[1]", "a: b"])
def test_a_variable_of_the_environment_is_the_text_that_was_typed(text):
    section = with_options(ComposeSection(environment={"B": 2}), {"environment.A": text})
    assert section.environment == {"A": text, "B": 2}


def test_a_path_reaches_keys_with_dots_and_keeps_the_others():
    section = RaySection(resources={"worker": {"CPU": 2}, "ps": {"CPU": 1}})
    changed = with_options(section, {"resources.worker.node:10.0.0.1": "0.1", "resources.ps.CPU": "3"})
    assert changed.resources == {"worker": {"CPU": 2, "node:10.0.0.1": 0.1}, "ps": {"CPU": 3}}
    assert section.resources == {"worker": {"CPU": 2}, "ps": {"CPU": 1}}


def test_what_follows_a_mapping_of_names_to_values_is_one_name():
    changed = with_options(
        KubernetesSection(),
        {
            "node_selector.cloud.google.com/gke-accelerator": "t4",
            "resources.all.memory": "1Gi",
            "volume.size": "2Gi",
        },
    )
    assert changed.node_selector == {"cloud.google.com/gke-accelerator": "t4"}
    assert (changed.resources["all"].memory, changed.volume.size) == ("1Gi", "2Gi")
    assert with_options(ComposeSection(), {"environment.a.b": "1"}).environment == {"a.b": "1"}
    assert with_options(ComposeSection(), {"service.deploy.mode": "x"}).service == {"deploy": {"mode": "x"}}
    vertex = with_options(VertexSection(machine_type={}), {"machine_type.worker": "n1", "labels.a.b": "c"})
    assert (vertex.machine_type, vertex.labels) == ({"worker": "n1"}, {"a.b": "c"})


def test_a_value_for_one_role_leaves_the_others_theirs():
    def path_of(role, name):
        return (name, role) if role else name

    changed = with_options(VertexSection(), {"worker:machine_type": "big"}, path_of, ["ps", "worker"])
    assert changed.machine_type == {"ps": "n1-standard-4", "worker": "big"}
    changed = with_options(changed, {"ps:machine_type": "small", "machine_type.worker": "1"}, path_of)
    assert changed.machine_type == {"ps": "small", "worker": "1"}
    changed = with_options(SshSection(hosts=["a", "b"]), {"ps:hosts": "[c]"}, path_of, ["ps", "worker"])
    assert changed.hosts == {"ps": ["c"], "worker": ["a", "b"]}
    assert with_options(VertexSection(), {"worker:accelerator_type": "T4"}, path_of).accelerator_type == {
        "worker": "T4"
    }


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("restart", "1", r"^--option restart=1: restart: unknown key\. Did you mean 'restarts'\?$"),
        ("worker:Port", "1", r"^--option worker:Port=1: worker:Port: unknown key"),
        ("restarts", "often", r"restarts: expected a whole number, received 'often'$"),
        ("code", "moun", r"code: there is no 'moun'\. Did you mean 'mount'\?$"),
        ("gpus.worker", "x", r"gpus\.worker: expected a whole number, received 'x'$"),
        ("image.tag", "1", r"image is not a section\. It is 'tfdist'$"),
    ],
)
def test_a_mistake_is_one_line(key, text, message):
    with pytest.raises(ConfigError, match=message):
        with_options(ComposeSection(), {key: text})
