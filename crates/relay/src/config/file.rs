//! The configuration file as written, and its meaning.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use expressway_dataplane::IoSection;
use expressway_settings::{ConfigError, SourceFile, Span, admin, named};
use ipnet::IpNet;
use serde::Deserialize;
use toml::Spanned;

use super::moq::MoqTable;
use super::srtp::SrtpTable;
use super::webrtc::WebRtcTable;
use super::{Codec, Config, Data, Output, Payload, RECEIVERS, ROOMS, Room, Rtcp, SlowData};

impl Payload {
    const NAMES: [(&'static str, Self); 2] = [("rtp", Self::Rtp), ("any", Self::Any)];
}

impl Rtcp {
    const NAMES: [(&'static str, Self); 3] =
        [("next-port", Self::NextPort), ("mux", Self::Mux), ("none", Self::None)];
}

named!(Payload);
named!(Rtcp);

/// Workers at most.
const WORKERS: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "one")]
    workers: Spanned<usize>,
    #[serde(default)]
    io: IoSection,
    ttl: Option<Spanned<u8>>,
    admin: Option<admin::Section>,
    webrtc: Option<WebRtcTable>,
    moq: Option<MoqTable>,
    #[serde(default)]
    room: Vec<Spanned<RoomTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoomTable {
    name: Spanned<String>,
    rtp_in: Option<Spanned<SocketAddr>>,
    from: Option<Spanned<SocketAddr>>,
    interface: Option<Spanned<String>>,
    #[serde(default)]
    sources: Vec<Spanned<IpAddr>>,
    #[serde(default)]
    allow: Vec<IpNet>,
    #[serde(default)]
    payload: Payload,
    #[serde(default)]
    rtcp: Rtcp,
    #[serde(default = "history")]
    history: Spanned<usize>,
    #[serde(default = "longest")]
    max_packet: Spanned<u16>,
    #[serde(default = "super::keyframe_interval")]
    keyframe_interval: Span,
    #[serde(default = "super::publisher_timeout")]
    publisher_timeout: Span,
    #[serde(default)]
    clock_rates: BTreeMap<String, u32>,
    codecs: Option<BTreeMap<String, Codec>>,
    whip: Option<Spanned<bool>>,
    whep: Option<Spanned<bool>>,
    players: Option<Spanned<usize>>,
    moq: Option<Spanned<bool>>,
    moq_broadcast: Option<Spanned<String>>,
    #[serde(default)]
    data: Data,
    #[serde(default)]
    slow_data: SlowData,
    srtp: Option<Spanned<SrtpTable>>,
    #[serde(default)]
    rtp_out: Vec<Spanned<SocketAddr>>,
    #[serde(default)]
    out: Vec<OutTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutTable {
    address: Spanned<SocketAddr>,
    rtcp: Option<Rtcp>,
    ssrc: Option<u32>,
    payload_types: Option<Spanned<BTreeMap<String, u8>>>,
    srtp: Option<Spanned<SrtpTable>>,
}

fn one() -> Spanned<usize> {
    Spanned::new(0..0, 1)
}

fn history() -> Spanned<usize> {
    Spanned::new(0..0, 1024)
}

fn longest() -> Spanned<u16> {
    Spanned::new(0..0, 1500)
}

/// What is wrong, and at which bytes of the file.
pub(super) type Problem = (std::ops::Range<usize>, String);

pub(super) fn parse(source: &SourceFile) -> Result<Config, ConfigError> {
    let mut file: File = source.parse()?;
    let at = |(span, problem): Problem| source.at(span, problem);
    file.io.check().map_err(at)?;
    let folder = source.file.parent().unwrap_or(Path::new("."));
    file.io.resolve_paths(folder);
    if !(1..=WORKERS).contains(file.workers.get_ref()) {
        return Err(at((file.workers.span(), format!("1 to {WORKERS} workers"))));
    }
    if let Some(ttl) = file.ttl.as_ref().filter(|ttl| *ttl.get_ref() == 0) {
        return Err(at((ttl.span(), "0 leaves no host: use 1 to 255".into())));
    }
    if file.room.is_empty() {
        return Err(SourceFile::whole(&source.file, "no [[room]]: add one"));
    }
    if file.room.len() > ROOMS {
        return Err(SourceFile::whole(&source.file, format!("more than {ROOMS} rooms")));
    }
    let rooms = file
        .room
        .iter()
        .map(|table| room(table.get_ref(), folder).map_err(at))
        .collect::<Result<Vec<_>, _>>()?;
    let webrtc = file.webrtc.map(|table| table.check(folder)).transpose().map_err(at)?;
    for (table, room) in file.room.iter().zip(&rooms).filter(|_| webrtc.is_none()) {
        let wanted = table.get_ref().whip.as_ref().filter(|_| room.whip);
        if let Some(wanted) = wanted.or(table.get_ref().whep.as_ref().filter(|_| room.whep)) {
            return Err(at((
                wanted.span(),
                "there is no [webrtc]: add it, with the addresses for sessions".into(),
            )));
        }
    }
    keys_differ(&file.room, &rooms).map_err(at)?;
    let moq = file.moq.map(|table| table.check(folder)).transpose().map_err(at)?;
    let lost = file.room.iter().zip(&rooms).find(|(_, room)| room.moq && moq.is_none());
    if let Some((table, _)) = lost {
        let span = table.get_ref().moq.as_ref().map_or(table.span(), Spanned::span);
        return Err(at((span, "there is no [moq]: add it, with the addresses for sessions".into())));
    }
    let sessions = webrtc.iter().flat_map(|webrtc| &webrtc.listen).map(|address| (*address, "[webrtc]"));
    let of_moq = moq.iter().flat_map(|moq| &moq.listen).map(|address| (*address, "[moq]"));
    apart(&file.room, &rooms, sessions.chain(of_moq).collect()).map_err(at)?;
    Ok(Config {
        workers: *file.workers.get_ref(),
        io: file.io,
        ttl: file.ttl.map(Spanned::into_inner),
        admin: source.admin(file.admin)?,
        webrtc,
        moq,
        rooms,
        text: shown(&source.text, &file.room),
    })
}

/// The file's text without its keys: the admin listener shows it.
fn shown(text: &str, rooms: &[Spanned<RoomTable>]) -> String {
    let tables = rooms.iter().map(Spanned::get_ref);
    let tables =
        tables.flat_map(|room| room.srtp.iter().chain(room.out.iter().filter_map(|out| out.srtp.as_ref())));
    let mut keys: Vec<_> = tables.filter_map(|table| table.get_ref().inline()).collect();
    keys.sort_by_key(|key| key.start);
    let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
    for key in keys {
        shown.push_str(&text[from..key.start]);
        shown.push_str("\"***\"");
        from = key.end;
    }
    shown.push_str(&text[from..]);
    shown
}

/// No master key occurs twice: with one key in two places the keystream of two packets may be the same (RFC 3711,
/// section 9.1).
fn keys_differ(tables: &[Spanned<RoomTable>], rooms: &[Room]) -> Result<(), Problem> {
    let mut places = HashMap::new();
    for (table, room) in tables.iter().zip(rooms) {
        let table = table.get_ref();
        let publisher = table.srtp.as_ref().zip(room.srtp.as_ref());
        let named = table.out.iter().filter_map(|out| out.srtp.as_ref());
        let outputs = named.zip(room.outputs.iter().filter_map(|output| output.srtp.as_ref()));
        for (table, keys) in publisher.into_iter().chain(outputs) {
            if let Some(other) = places.insert(keys.key(), room.name.as_str()) {
                let problem =
                    format!("each SRTP key is for a single room or out: this one is also used in `{other}`");
                return Err((table.span(), problem));
            }
        }
    }
    Ok(())
}

fn room(table: &RoomTable, folder: &Path) -> Result<Room, Problem> {
    let name = table.name.get_ref();
    if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
        return Err((table.name.span(), "1 to 64 characters, none of them a control character".into()));
    }
    let is_set = |flag: &Option<Spanned<bool>>| flag.as_ref().is_some_and(|flag| *flag.get_ref());
    let (whip, whep, moq) = (is_set(&table.whip), is_set(&table.whep), is_set(&table.moq));
    let input = table.rtp_in.as_ref().map(|input| host(input, true)).transpose()?;
    if input.is_none() && !whip && !moq {
        return Err((
            table.name.span(),
            "the room has no way to publish: set `rtp_in`, `whip` or `moq`".into(),
        ));
    }
    if (whip || whep) && table.payload == Payload::Any {
        return Err((table.name.span(), "`whip` and `whep` need `payload = \"rtp\"`".into()));
    }
    let is_group = input.is_some_and(|input| input.ip().is_multicast());
    let from = match (&table.from, &table.rtp_in) {
        (Some(from), _) => Some(host(from, false)?),
        (None, Some(input)) if is_group => {
            let problem =
                "a multicast group cannot send: set `from` to the address that receivers should see";
            return Err((input.span(), problem.into()));
        }
        _ => input,
    };
    for (span, is_set) in [
        (table.interface.as_ref().map(Spanned::span), table.interface.is_some()),
        (table.sources.first().map(Spanned::span), !table.sources.is_empty()),
    ] {
        if let Some(span) = span.filter(|_| is_set && !is_group) {
            return Err((span, "`rtp_in` is not a multicast group".into()));
        }
    }
    let players = table.players.as_ref().map_or(RECEIVERS, |players| *players.get_ref());
    if let Some(span) =
        table.players.as_ref().map(Spanned::span).filter(|_| !(1..=RECEIVERS).contains(&players))
    {
        return Err((span, format!("1 to {RECEIVERS} players")));
    }
    let history = *table.history.get_ref();
    if !(16..=16_384).contains(&history) || !history.is_power_of_two() {
        return Err((table.history.span(), "a power of two from 16 to 16384 packets".into()));
    }
    if !(64..=9000).contains(table.max_packet.get_ref()) {
        return Err((table.max_packet.span(), "64 to 9000 bytes".into()));
    }
    let outputs = outputs(table, from, folder)?;
    let srtp = table.srtp.as_ref().map(|table| SrtpTable::check(table, folder)).transpose()?;
    if let Some(table) = table.srtp.as_ref().filter(|_| table.payload == Payload::Any || input.is_none()) {
        return Err((table.span(), "`srtp` needs `rtp_in`, and `payload = \"rtp\"`".into()));
    }
    let has_rtp = table.payload == Payload::Rtp;
    let moq_broadcast =
        super::moq::broadcast(table.moq_broadcast.as_ref(), moq, has_rtp, input.is_some() || whip)?;
    let codecs = codecs(table, whip || whep || moq_broadcast.is_some())?;
    Ok(Room {
        name: name.clone(),
        input,
        from,
        interface: table.interface.as_ref().map(|name| name.get_ref().clone()),
        sources: table.sources.iter().map(|source| *source.get_ref()).collect(),
        allow: table.allow.clone(),
        payload: table.payload,
        rtcp: if table.payload == Payload::Any { Rtcp::None } else { table.rtcp },
        history,
        longest: *table.max_packet.get_ref(),
        keyframe_interval: table.keyframe_interval.0,
        publisher_timeout: table.publisher_timeout.0,
        clocks: clocks(table, &codecs)?,
        codecs,
        whip,
        whep,
        players,
        moq,
        moq_broadcast,
        data: table.data,
        slow_data: table.slow_data,
        srtp,
        outputs,
    })
}

/// An address with a port that is not 0, no wildcard, and a port behind it for RTCP.
fn host(address: &Spanned<SocketAddr>, group: bool) -> Result<SocketAddr, Problem> {
    let value = *address.get_ref();
    let problem = if value.ip().is_unspecified() {
        "a wildcard: name one address"
    } else if value.port() == 0 || value.port() == u16::MAX {
        "the port has to be 1 to 65534"
    } else if value.ip().is_multicast() && !group {
        "is a multicast group"
    } else {
        return Ok(value);
    };
    Err((address.span(), problem.into()))
}

fn outputs(table: &RoomTable, from: Option<SocketAddr>, folder: &Path) -> Result<Vec<Output>, Problem> {
    let plain = table.rtp_out.iter().map(|address| {
        let output = Output {
            address: *address.get_ref(),
            rtcp: table.rtcp,
            ssrc: None,
            payload_types: Vec::new(),
            srtp: None,
        };
        Ok((address, output))
    });
    let changed = table.out.iter().map(|out| {
        let payload_types = out.payload_types.as_ref().map_or_else(|| Ok(Vec::new()), payload_types)?;
        let rtcp = out.rtcp.unwrap_or(table.rtcp);
        let srtp = out.srtp.as_ref().map(|table| SrtpTable::check(table, folder)).transpose()?;
        let address = *out.address.get_ref();
        Ok((&out.address, Output { address, rtcp, ssrc: out.ssrc, payload_types, srtp }))
    });
    let mut seen = HashMap::new();
    let mut outputs = Vec::new();
    for output in plain.chain(changed) {
        let (address, mut output): (&Spanned<SocketAddr>, Output) = output?;
        host(address, true)?;
        let Some(from) = from else {
            let problem = "set `from` to the address that receivers should see, or `rtp_in`";
            return Err((address.span(), problem.into()));
        };
        if output.address.is_ipv4() != from.is_ipv4() {
            return Err((
                address.span(),
                format!("is not of the same address family as {from}, from which it would be sent"),
            ));
        }
        if output.address == from {
            return Err((address.span(), "is this room's own address: this would loop".into()));
        }
        if table.payload == Payload::Any {
            if output.is_rewritten() || output.srtp.is_some() {
                return Err((
                    address.span(),
                    "`ssrc`, `payload_types` and `srtp` need `payload = \"rtp\"`".into(),
                ));
            }
            output.rtcp = Rtcp::None;
        }
        if seen.insert(output.address, ()).is_some() {
            return Err((address.span(), "receives already".into()));
        }
        outputs.push(output);
    }
    if outputs.len() > RECEIVERS {
        return Err((table.name.span(), format!("more than {RECEIVERS} receivers")));
    }
    Ok(outputs)
}

fn payload_types(table: &Spanned<BTreeMap<String, u8>>) -> Result<Vec<(u8, u8)>, Problem> {
    let wrong = || (table.span(), "payload types are 0 to 127: { 96 = 100 }".to_owned());
    let pair = |(from, to): (&String, &u8)| {
        let from = from.parse().ok().filter(|from| *from < 128).ok_or_else(wrong)?;
        if *to < 128 { Ok((from, *to)) } else { Err(wrong()) }
    };
    table.get_ref().iter().map(pair).collect()
}

/// What is in `codecs`, or else the usual ones; none of a room that does not look at them.
fn codecs(table: &RoomTable, looks: bool) -> Result<Box<[Option<Codec>; 128]>, Problem> {
    let mut codecs = Box::new([None; 128]);
    let Some(named) = &table.codecs else {
        let usual = Codec::DEFAULTS.iter().filter(|_| looks);
        usual.for_each(|(payload_type, codec)| codecs[*payload_type] = Some(*codec));
        return Ok(codecs);
    };
    let mut seen = Vec::new();
    for (payload_type, codec) in named {
        let Some(payload_type) = payload_type.parse::<usize>().ok().filter(|number| *number < 128) else {
            return Err((
                table.name.span(),
                "`codecs` are of payload types 0 to 127: { 96 = \"h264\" }".into(),
            ));
        };
        if seen.contains(codec) {
            return Err((table.name.span(), "`codecs`: each codec has one payload type".into()));
        }
        seen.push(*codec);
        codecs[payload_type] = Some(*codec);
    }
    Ok(codecs)
}

/// Of static payload types as RFC 3551, section 6, of codecs their own, of others 90 kHz, as video has.
fn clocks(table: &RoomTable, codecs: &[Option<Codec>; 128]) -> Result<Box<[u32; 128]>, Problem> {
    let mut clocks = Box::new([90_000; 128]);
    for (types, clock) in [
        (&[0, 3, 4, 5, 7, 8, 9, 12, 13, 15, 18][..], 8000),
        (&[6][..], 16_000),
        (&[10, 11][..], 44_100),
        (&[16][..], 11_025),
        (&[17][..], 22_050),
    ] {
        types.iter().for_each(|payload_type: &usize| clocks[*payload_type] = clock);
    }
    for (payload_type, codec) in codecs.iter().enumerate() {
        clocks[payload_type] = codec.map_or(clocks[payload_type], Codec::clock);
    }
    for (payload_type, clock) in &table.clock_rates {
        let payload_type = payload_type.parse::<usize>().ok().filter(|number| *number < 128);
        let (Some(payload_type), 1..=10_000_000) = (payload_type, *clock) else {
            let problem = "`clock_rates` are of payload types 0 to 127, in Hz: { 96 = 90000 }";
            return Err((table.name.span(), problem.into()));
        };
        clocks[payload_type] = *clock;
    }
    Ok(clocks)
}

/// No two rooms have a name or an address in common, and none receives what another sends.
fn apart<'a>(
    tables: &[Spanned<RoomTable>],
    rooms: &'a [Room],
    mut addresses: HashMap<SocketAddr, &'a str>,
) -> Result<(), Problem> {
    let mut names = HashMap::new();
    for (table, room) in tables.iter().zip(rooms) {
        let table = table.get_ref();
        if names.insert(room.name.as_str(), ()).is_some() {
            return Err((table.name.span(), format!("another room is called `{}`", room.name)));
        }
        for address in room.listen() {
            if let Some(other) = addresses.insert(address, room.name.as_str()) {
                let span =
                    table.rtp_in.as_ref().or(table.from.as_ref()).map_or(table.name.span(), Spanned::span);
                return Err((span, format!("{address} is used by `{other}`")));
            }
        }
    }
    for (table, room) in tables.iter().zip(rooms) {
        for output in &room.outputs {
            if let Some(other) = addresses.get(&output.address) {
                let problem = format!("`{other}` receives on {}: this may loop", output.address);
                return Err((table.get_ref().name.span(), problem));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Config, ConfigError> {
        Config::parse(&SourceFile { file: "relay.toml".into(), text: text.into() })
    }

    const SMALL: &str =
        "[[room]]\nname = \"studio\"\nrtp_in = \"192.0.2.1:5004\"\nrtp_out = [\"192.0.2.50:5004\"]\n";

    #[test]
    fn a_room_has_defaults() {
        let config = parsed(SMALL).unwrap();
        let room = &config.rooms[0];
        assert_eq!((room.history, room.longest, room.rtcp), (1024, 1500, Rtcp::NextPort));
        assert_eq!(room.from, room.input);
        assert!(room.codecs.iter().all(Option::is_none) && !room.whip && !room.whep);
        assert_eq!(room.listen(), ["192.0.2.1:5004".parse().unwrap(), "192.0.2.1:5005".parse().unwrap()]);
        assert_eq!((room.clocks[0], room.clocks[14], room.clocks[96]), (8000, 90_000, 90_000));
        assert!(!room.outputs[0].is_rewritten());
    }

    #[test]
    fn all_that_can_be_said_is_read() {
        let config = parsed(
            "workers = 2\nttl = 8\n[io]\nmode = \"udp\"\n[admin]\nlisten = \"127.0.0.1:9180\"\n\
             [[room]]\nname = \"a\"\nrtp_in = \"239.1.1.1:5004\"\nfrom = \"192.0.2.1:6000\"\ninterface = \"eth0\"\n\
             sources = [\"192.0.2.9\"]\nallow = [\"192.0.2.0/24\"]\nrtcp = \"mux\"\nhistory = 64\nmax_packet = 1400\n\
             keyframe_interval = \"1s\"\npublisher_timeout = \"2s\"\nclock_rates = { 97 = 48000 }\n\
             [[room.out]]\naddress = \"192.0.2.50:5004\"\nrtcp = \"next-port\"\nssrc = 7\npayload_types = { 96 = 100 }\n\
             [[room]]\nname = \"ts\"\nrtp_in = \"192.0.2.1:7000\"\npayload = \"any\"\nrtp_out = [\"239.2.2.2:7000\"]\n",
        )
        .unwrap();
        let [a, ts] = &config.rooms[..] else { panic!("two rooms") };
        assert_eq!(a.outputs[0].payload_type(96), 100);
        assert_eq!(a.outputs[0].payload_type(97), 97);
        assert_eq!(a.clocks[97], 48_000);
        assert_eq!(a.listen().len(), 3, "{:?}", a.listen());
        assert_eq!((ts.rtcp, ts.outputs[0].rtcp), (Rtcp::None, Rtcp::None));
        assert_eq!(ts.listen(), ["192.0.2.1:7000".parse().unwrap()]);
    }

    #[test]
    fn what_cannot_be_is_named_with_its_line() {
        for (text, line, words) in [
            ("", 0, "no [[room]]"),
            ("workers = 0\n[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\n", 1, "1 to 64"),
            ("ttl = 0\n[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\n", 1, "1 to 255"),
            ("[[room]]\nname = \"\"\nrtp_in = \"192.0.2.1:5004\"\n", 2, "characters"),
            ("[[room]]\nname = \"a\"\nrtp_in = \"0.0.0.0:5004\"\n", 3, "wildcard"),
            ("[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:65535\"\n", 3, "port"),
            ("[[room]]\nname = \"a\"\nrtp_in = \"239.1.1.1:5004\"\n", 3, "`from`"),
            ("[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nfrom = \"239.1.1.1:1\"\n", 4, "group"),
            (
                "[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\ninterface = \"eth0\"\n",
                4,
                "not a multicast",
            ),
            ("[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nhistory = 100\n", 4, "power of two"),
            ("[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nmax_packet = 10\n", 4, "64 to 9000"),
            (
                "[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nrtp_out = [\"[2001:db8::1]:4\"]\n",
                4,
                "family",
            ),
            (
                "[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nrtp_out = [\"192.0.2.1:5004\"]\n",
                4,
                "loop",
            ),
            (
                "[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nclock_rates = { 200 = 1 }\n",
                2,
                "payload types",
            ),
            ("[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nrtcp = \"odd\"\n", 4, "next-port"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
            assert!(line == 0 || error.contains(&format!("relay.toml:{line}")), "{text}: {error}");
        }
        let twice = format!("{SMALL}{}", SMALL.replace("5004", "6004"));
        assert!(parsed(&twice).unwrap_err().to_string().contains("another room"));
        let same = format!("{SMALL}{}", SMALL.replace("studio", "other"));
        assert!(parsed(&same).unwrap_err().to_string().contains("is used by `studio`"));
        let circle = format!(
            "{SMALL}{}",
            SMALL
                .replace("studio", "other")
                .replace("192.0.2.50:5004", "192.0.2.1:5004")
                .replace("in = \"192.0.2.1:5004", "in = \"192.0.2.1:6004")
        );
        assert!(parsed(&circle).unwrap_err().to_string().contains("this may loop"));
    }
}
