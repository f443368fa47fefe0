//! The choices of the data path as one JSON document: the admin listener's `/io`.

use serde_json::{Value, json};

use crate::data_path::DataPath;
use crate::open::QueueMode;

/// Interfaces with their queues, listen addresses with their modes, and every step down.
pub fn io(path: &DataPath) -> Value {
    let queues = |queues: Vec<QueueMode>| -> Vec<Value> {
        let queue = |queue: &QueueMode| {
            json!({
                "queue": queue.queue,
                "receive": queue.receive.to_string(),
                "transmit": queue.transmit.to_string(),
            })
        };
        queues.iter().map(queue).collect()
    };
    let interfaces: Vec<Value> = path
        .queue_modes()
        .into_iter()
        .map(|(name, attach, modes)| json!({"interface": name, "attach": attach.name(), "queues": queues(modes)}))
        .collect();
    let listen: Vec<Value> = path
        .modes()
        .into_iter()
        .map(|(address, mode)| json!({"address": address.to_string(), "io": mode.to_string()}))
        .collect();
    json!({"listen": listen, "interfaces": interfaces, "step_downs": path.step_downs()})
}
