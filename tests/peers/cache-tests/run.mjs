// Runs the tests against a cache: node run.mjs URL [ID...]. Prints one JSON object per test, in the suite's order:
// {"id", "name", "group", "kind": "required" | "optimal" | "check", "verdict", "said"}.
//
// Verdicts: "pass", "fail"; "setup": what the test needs did not come about, so it says nothing;
// "dependency": a test that this one builds on did not pass.
import fetch from 'node-fetch'
import { getResults, runTests } from 'http-cache-tests/client/runner.mjs'
import suites from 'http-cache-tests/tests/index.mjs'
import surrogate from 'http-cache-tests/tests/surrogate-control.mjs'

const [url, ...wanted] = process.argv.slice(2)
const groups = [...suites, surrogate].map(group => ({
  ...group,
  tests: group.tests.filter(test => !test.browser_only && (wanted.length === 0 || wanted.includes(test.id)))
}))
await runTests(groups, fetch, false, url)
const results = getResults()

const tests = new Map(groups.flatMap(group => group.tests).map(test => [test.id, test]))

function verdict (test) {
  const result = results[test.id]
  const isMet = id => !tests.has(id) || verdict(tests.get(id)) === 'pass'
  if (!(test.depends_on ?? []).every(isMet)) return 'dependency'
  if (result === true) return 'pass'
  return result[0] === 'Assertion' ? 'fail' : 'setup'
}

for (const group of groups) {
  for (const test of group.tests) {
    const result = results[test.id]
    console.log(JSON.stringify({
      id: test.id,
      name: test.name,
      group: group.name,
      kind: test.kind ?? 'required',
      verdict: verdict(test),
      said: result === true ? '' : result.join(': ')
    }))
  }
}
