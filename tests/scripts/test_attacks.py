"""Each hostile attack is one of a test: the lists of tests/peers against the cases of tests/e2e."""

import ast
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS, CASES = ROOT / "tests/peers", sorted((ROOT / "tests/e2e").glob("test_*hostile*.py"))
# What stands in for an attack in the rounds without one: tests/e2e/harness/hostile.py.
PLAIN = {"plain", "plain_connections", "moq_plain"}


def attacks(file: Path) -> set[str]:
    """The functions in the list ATTACKS of a file."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ATTACKS" and isinstance(node.value, ast.List | ast.Tuple):
            return {ast.unparse(one) for one in node.value.elts}
    return set()


def generators(file: Path) -> set[str]:
    """The functions of a file that take what an attack takes, and no more."""
    functions = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))
    return {one.name for one in functions if [argument.arg for argument in one.args.args] == ["target", "report"] and not one.args.kwarg}


def go_attacks() -> set[str]:
    """Those of the Go client, as the tests call them."""
    text = (PEERS / "quicgo/hostile.go").read_text()
    table = text.split("var hostileAttacks")[1].split("\n}\n")[0]
    return {f"quicgo {name}" for name in re.findall(r'^\t"([a-z-]+)":', table, re.MULTILINE)}


def literals(file: Path) -> set[str]:
    """The strings of a test file that stand in calls of `Case`, or in parameters of its tests and the tables that these name."""
    module = ast.parse(file.read_text())
    tables = {ast.unparse(node.targets[0]): node.value for node in module.body if isinstance(node, ast.Assign)}
    parts: list[ast.AST] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Case":
            parts.append(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".parametrize"):
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            parts += [node, *(tables[name] for name in names & tables.keys())]
    strings = (one.value for part in parts for one in ast.walk(part) if isinstance(one, ast.Constant))
    return {value for value in strings if isinstance(value, str)}


class Attacks(unittest.TestCase):
    modules = sorted((PEERS / "hostile").glob("*.py"))

    def test_each_has_a_case(self) -> None:
        written = set[str]().union(*map(attacks, self.modules), go_attacks()) - PLAIN
        self.assertGreater(len(written), 40)
        cases = set[str]().union(*map(literals, CASES))
        self.assertEqual(sorted(written - cases), [], "attacks that no test runs: give each a case")

    def test_each_is_listed(self) -> None:
        for module in self.modules:
            left = generators(module) - attacks(module)
            self.assertEqual(sorted(left), [], f"{module.name}: attacks that are not in ATTACKS")


if __name__ == "__main__":
    unittest.main()
