//! What the data path chose, as one JSON document: the admin listener's `/io`.

use serde_json::{Value, json};

use super::data_path::DataPath;

/// Interfaces with their queues, listen addresses with their modes, and every step down.
pub(super) fn io(path: &DataPath) -> Value {
    let queues = |queues: Vec<super::opening::QueueWay>| -> Vec<Value> {
        let queue = |way: &super::opening::QueueWay| {
            json!({
                "queue": way.queue,
                "receive": way.receive.to_string(),
                "transmit": way.transmit.to_string(),
            })
        };
        queues.iter().map(queue).collect()
    };
    let interfaces: Vec<Value> = path
        .ways()
        .into_iter()
        .map(|(name, attach, ways)| json!({"interface": name, "attach": attach.name(), "queues": queues(ways)}))
        .collect();
    let listen: Vec<Value> = path
        .modes()
        .into_iter()
        .map(|(address, mode)| json!({"address": address.to_string(), "io": mode.to_string()}))
        .collect();
    json!({"listen": listen, "interfaces": interfaces, "step_downs": path.step_downs()})
}
