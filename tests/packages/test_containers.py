"""The container file by hadolint, its root as a root, and the Kubernetes manifests by the API's schemas."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import BINARY, LIMIT, PACKAGING, ROOT, run
from test_units import CAPABILITIES

CONTAINERFILE = PACKAGING / "container" / "Containerfile"
MANIFEST = PACKAGING / "kubernetes" / "expressway.yaml"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the image."""
    folder = tmp_path_factory.mktemp("image")
    return Path(run([ROOT / "scripts/package", "image", "--binary", BINARY, "--out", folder]).strip())


def test_hadolint_has_nothing_to_say() -> None:
    run([Path(sys.executable).with_name("hadolint"), "--failure-threshold", "style", CONTAINERFILE])


def test_what_the_container_file_copies_is_beside_it(image: Path) -> None:
    assert (image.parent / "Containerfile").read_text() == CONTAINERFILE.read_text()
    copied = [line.split()[1] for line in CONTAINERFILE.read_text().splitlines() if line.startswith("COPY ")]
    assert copied == ["image/"] and image.name == "image"


def test_the_program_runs_with_nothing_but_the_image(image: Path) -> None:
    """As the image's user, in a root that has nothing else: no shell, and no library that was forgotten."""
    if os.geteuid() != 0:
        assert "EXPRESSWAY_REQUIRE_ROOT_TESTS" not in os.environ, "needs root"
        pytest.skip("needs root")
    user = next(line.split()[1] for line in CONTAINERFILE.read_text().splitlines() if line.startswith("USER "))
    chroot = ["chroot", f"--userspec={user}", image, "/usr/bin/expressway"]
    assert run([*chroot, "--version"]).startswith("expressway ")
    run([*chroot, "cert", "--host", "localhost", "--out", "/tmp/c"])
    (image / "tmp" / "relay.toml").write_text('[[room]]\nname = "a"\nrtp_in = "127.0.0.1:5004"\nrtp_out = ["127.0.0.1:5104"]\n')
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh",
               *(str(word) for word in chroot), "relay", "--config", "/tmp/relay.toml", "--io", "udp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout and relay.stdout.readline().startswith("ready room=a ")
        finally:
            relay.terminate()
            assert relay.wait(LIMIT) == 0


@pytest.mark.parametrize("version", ["1.29", "1.32"])
def test_the_apis_schemas_take_the_manifests(version: str) -> None:
    """With the schemas that the validator brings along, strictly: no field that the API does not know."""
    run([Path(sys.executable).with_name("kubernetes-validate"), "--strict", "-k", version, MANIFEST])


def test_the_configurations_in_it_are_some(tmp_path: Path) -> None:
    config, daemon_set = yaml.safe_load_all(MANIFEST.read_text())
    files = config["data"]
    run([BINARY, "cert", "--host", "localhost", "--out", tmp_path])
    run([BINARY, "keys", "new", "--out", tmp_path])
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o440)
    for name, text in files.items():
        # With what is left to whoever has several nodes.
        text = text.replace("# [keys]", "[keys]").replace("# file = ", "file = ").replace("# signer = ", "signer = ")
        text = text.replace("/etc/expressway-keys", str(tmp_path))
        text = text.replace("/etc/expressway-tls/tls.crt", f"{tmp_path}/cert.pem")
        text = text.replace("/etc/expressway-tls/tls.key", f"{tmp_path}/key.pem")
        (tmp_path / name).write_text(text.replace("/etc/expressway-admin/token", str(token)))
        run([BINARY, name.removesuffix(".toml"), "--config", tmp_path / name, "--check"])
    # The files are where the arguments say, and the agent is for the gateway's user.
    pod = daemon_set["spec"]["template"]["spec"]
    (agent,), (gateway,) = pod["initContainers"], pod["containers"]
    for container in (agent, gateway):
        assert container["args"][2].removeprefix("/etc/expressway/") in files
    assert f"users = [{gateway['securityContext']['runAsUser']}]" in files["agent.toml"]


def test_containers_may_have_what_services_may() -> None:
    _, daemon_set = yaml.safe_load_all(MANIFEST.read_text())
    pod = daemon_set["spec"]["template"]["spec"]
    for container, unit in ((pod["initContainers"][0], "expressway-agent"), (pod["containers"][0], "expressway")):
        context = container["securityContext"]
        assert {f"CAP_{name}" for name in context["capabilities"]["add"]} == CAPABILITIES[unit]
        assert context["capabilities"]["drop"] == ["ALL"] and not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
