//! The example of the library does what it says, over a veth between namespaces.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::netns::{NEAR, Pair, is_privileged};

#[test]
fn the_example_receives_by_af_xdp_and_shows_the_programs_stamp() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let to = SocketAddr::new(NEAR[0], 5000);
    let test = std::env::current_exe().unwrap();
    let binary = test.ancestors().nth(2).unwrap().join("examples/receive");
    let mut child = Command::new("ip")
        .args(["netns", "exec", &pair.near.name])
        .arg(binary)
        .arg(to.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let peer = pair.far.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let stop = AtomicBool::new(false);
    let stamped = std::thread::scope(|scope| {
        scope.spawn(|| {
            // It may not be there yet.
            while !stop.load(Ordering::Relaxed) {
                let _ = peer.send_to(b"eleven byte", to);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // The first may have come to the kernel socket.
        let mut lines = lines.map_while(Result::ok).take(2000);
        let found = lines.any(|line| line.starts_with("11 bytes from ") && line.contains("source: Program"));
        stop.store(true, Ordering::Relaxed);
        found
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(stamped);
}
