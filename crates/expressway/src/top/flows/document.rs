//! A sample as a JSON document.

use expressway_observe::flows::{Model, Window};
use serde_json::{Value, json};

use super::state::{self, State};

/// All of it; rows as chosen, those with the highest rates over 10 seconds first, at most `limit`.
pub(super) fn of(model: &Model, state: &State, limit: usize) -> Value {
    let sample = model.last();
    let mut rows = model.rows(state.group, state.show);
    rows.retain(|row| state.filter.takes(row));
    state::sort(&mut rows, state.sort);
    let left_off = rows.len().saturating_sub(limit);
    rows.truncate(limit);
    let windows = |of: &dyn Fn(Window) -> Value| {
        Window::ALL.map(|window| (window.seconds().to_string(), of(window))).into_iter().collect::<Value>()
    };
    json!({
        "time": sample.time,
        "interface": sample.interface,
        "present": sample.present,
        "program": sample.program,
        "notes": sample.notes,
        "totals": sample.totals,
        "rates": windows(&|window| json!(model.rate(window))),
        "others": windows(&|window| json!(model.others(window))),
        "by": state.group,
        "rows": rows,
        "rows_left_off": left_off,
        "queues": model.queues(),
        "drops": sample.drops,
        "process_drops": state.process_drops,
        "sockets": sample.sockets,
        "cpus": sample.cpus,
    })
}
