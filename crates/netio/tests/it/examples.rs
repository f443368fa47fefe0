//! Every example does what it says, over veths in namespaces.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::common::netns::{
    FAR, FAR_DEVICE, FAR_MAC, NEAR, NEAR_DEVICE, Namespace, Pair, is_privileged, run,
};

/// An example at work; killed on drop.
struct Example {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Example {
    fn start(namespace: &Namespace, name: &str, arguments: &str) -> Self {
        let test = std::env::current_exe().unwrap();
        let binary: PathBuf = test.ancestors().nth(2).unwrap().join("examples").join(name);
        assert!(
            binary.exists(),
            "{} is missing: `cargo build -p expressway-netio --examples`",
            binary.display()
        );
        let mut child = Command::new("ip")
            .args(["netns", "exec", &namespace.name])
            .arg(binary)
            .args(arguments.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// The next line that it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// The rest of what it prints, when it has ended well.
    fn rest(&mut self) -> String {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Both fail only when there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A socket in a namespace whose receive calls end.
fn socket(namespace: &Namespace, ip: IpAddr, port: u16) -> UdpSocket {
    let socket = namespace.enter(|| UdpSocket::bind((ip, port)).unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// Sends until an answer comes: datagrams may be lost while addresses are resolved or a link comes up.
fn exchange(socket: &UdpSocket, to: SocketAddr, request: &[u8]) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2048];
    for _ in 0..100 {
        socket.send_to(request, to).unwrap();
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            return (buffer[..length].to_vec(), from);
        }
    }
    panic!("no answer from {to}");
}

#[test]
fn each_example_is_short_and_needs_no_unsafe() {
    for name in ["echo", "l2fwd", "receive_and_drop", "transmit"] {
        let path = format!("{}/examples/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() < 60, "{path}");
        assert!(!text.contains("unsafe"), "{path}");
    }
}

#[test]
fn echo_answers_with_what_it_was_sent() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let address = SocketAddr::new(NEAR[0], 7001);
    let _echo = Example::start(&pair.near, "echo", &address.to_string());
    let far = socket(&pair.far, FAR[0], 0);
    assert_eq!(exchange(&far, address, b"over kernel sockets"), (b"over kernel sockets".to_vec(), address));
}

#[test]
fn receive_and_drop_counts_the_datagrams_of_its_address_on_all_queues() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 2);
    let address = SocketAddr::new(NEAR[0], 7002);
    let mut example =
        Example::start(&pair.near, "receive_and_drop", &format!("{NEAR_DEVICE} 2 {address} 500"));
    assert_eq!(example.line(), "receiving on 2 queues in copy mode\n");
    let (far, other) = (socket(&pair.far, FAR[0], 0), socket(&pair.near, NEAR[0], 7003));
    // Another port passes to the kernel's socket.
    far.send_to(b"not for the example", SocketAddr::new(NEAR[0], 7003)).unwrap();
    assert_eq!(other.recv(&mut [0; 64]).unwrap(), 19);
    while example.child.try_wait().unwrap().is_none() {
        far.send_to(&[7; 100], address).unwrap();
        std::thread::sleep(Duration::from_micros(50));
    }
    let text = example.rest();
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [packets, bytes] = numbers[..] else { panic!("{text}") };
    assert!(packets >= 500, "{text}");
    assert_eq!(bytes, packets * 142, "a payload of 100 bytes behind 42 of headers");
}

#[test]
fn transmit_sends_datagrams_that_the_kernel_takes() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let far = socket(&pair.far, FAR[0], 7004);
    let mac = expressway_wire::MacAddr(FAR_MAC);
    let arguments = format!("{NEAR_DEVICE} {}:7005 {}:7004 {mac} 150", NEAR[0], FAR[0]);
    let mut example = Example::start(&pair.near, "transmit", &arguments);
    assert_eq!(example.rest(), "sent 150 packets in copy mode\n");
    for number in 0..150u64 {
        let mut buffer = [0; 128];
        let (length, from) = far.recv_from(&mut buffer).unwrap();
        assert_eq!((length, from), (64, SocketAddr::new(NEAR[0], 7005)));
        assert_eq!(buffer[..8], number.to_be_bytes(), "in order");
        assert!(buffer[8..64].iter().all(|&byte| byte == b'.'));
    }
}

#[test]
fn l2fwd_carries_datagrams_between_two_interfaces() {
    if !is_privileged() {
        return;
    }
    let (left, middle, right) = (Namespace::new(), Namespace::new(), Namespace::new());
    let ends = [(&left, "10.78.0.1", "02:c0:4f:01:00:01"), (&right, "10.78.0.2", "02:c0:4f:01:00:02")];
    for (number, (end, address, mac)) in ends.iter().enumerate() {
        run(&format!(
            "ip link add {FAR_DEVICE} address {mac} numrxqueues 1 numtxqueues 1 netns {} type veth peer name mid{number} \
             address 02:c0:4f:02:00:0{number} numrxqueues 1 numtxqueues 1 netns {}",
            end.name, middle.name
        ));
        middle.ip(&format!("link set mid{number} up"));
        end.ip(&format!("link set {FAR_DEVICE} up"));
        end.ip(&format!("addr add {address}/24 dev {FAR_DEVICE}"));
        // The middle answers no ARP for the other end; and a veth leaves checksums to be finished by a device.
        let other = ends[1 - number].1;
        end.ip(&format!("neigh add {other} lladdr 02:c0:4f:02:00:0{number} dev {FAR_DEVICE}"));
        end.exec(&format!("ethtool -K {FAR_DEVICE} tx off"));
    }
    let arguments = format!("mid0 {} mid1 {} 10.78.0.2:7006 10.78.0.1:7007", ends[0].2, ends[1].2);
    let mut example = Example::start(&middle, "l2fwd", &arguments);
    assert_eq!(example.line(), "forwarding in copy mode\n");
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let (here, there) = (socket(&left, ip(ends[0].1), 7007), socket(&right, ip(ends[1].1), 7006));
    let (request, from) = {
        let to = there.local_addr().unwrap();
        let mut buffer = [0; 64];
        let mut arrived = None;
        for _ in 0..100 {
            here.send_to(b"to the right", to).unwrap();
            if let Ok((length, from)) = there.recv_from(&mut buffer) {
                arrived = Some((buffer[..length].to_vec(), from));
                break;
            }
        }
        arrived.expect("the datagram came through")
    };
    assert_eq!((request.as_slice(), from), (&b"to the right"[..], here.local_addr().unwrap()));
    there.send_to(b"to the left", from).unwrap();
    let mut buffer = [0; 64];
    let (length, back) = here.recv_from(&mut buffer).expect("the answer comes back the same way");
    assert_eq!((&buffer[..length], back), (&b"to the left"[..], there.local_addr().unwrap()));
}
