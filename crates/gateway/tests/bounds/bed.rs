//! A gateway with real files, and the longest turn that its clients can bring about.

use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use expressway_gateway::quic::Settings;
use expressway_netio::sim::Link;
use expressway_netio::{SliceLimit, WorkerOptions};
use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig};
use expressway_web::memory::Memory;
use expressway_web::{CompressOptions, Handler, PathPattern, PathRule, SiteConfig, Sites, Template};
use http::{HeaderName, HeaderValue};

use crate::support::client::{Client, Options};
use crate::support::world::{Build, SERVES, World};
use crate::tagged_allocator;

/// What a turn may take on a processor: 1 ms as it is built for use. Without optimisation all takes so many times as long, and
/// the pieces of work that cannot be cut with it.
pub(crate) const BOUND: Duration = Duration::from_millis(if cfg!(debug_assertions) { 6 } else { 1 });

/// A turn is too long if it is so each time: interrupts and cold caches are nobody's doing.
pub(crate) const TRIES: usize = 5;

/// Blocks of the large file.
pub(crate) const BLOCKS: u64 = 200;
pub(crate) const BLOCK: u64 = 256 << 10;

static ROOT: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (name, size) in [("small", 1024), ("page.js", 30_000), ("page.js.br", 9000), ("page.js.gz", 12_000)] {
        std::fs::write(at(name), vec![7; size]).unwrap();
    }
    let text: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
    std::fs::write(at("text.txt"), text).unwrap();
    std::fs::create_dir_all(at("a/b/c")).unwrap();
    std::fs::write(at("a/b/c/index.html"), "deep").unwrap();
    // Never written, so that it takes no room.
    std::fs::File::create(at("large")).unwrap().set_len(BLOCKS * BLOCK).unwrap();
    directory
});

/// What is allocated is the process's: who compares it with what is counted is alone with its world.
static WORLDS: RwLock<()> = RwLock::new(());

/// Beside others.
pub(crate) fn beside() -> RwLockReadGuard<'static, ()> {
    WORLDS.read().unwrap_or_else(PoisonError::into_inner)
}

/// With nobody beside.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    WORLDS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Memory outside the block cache, where it is not to be met.
pub(crate) const PLENTY: usize = 256 << 20;

/// Files, and where what they hold is counted.
fn files(cache_bytes: u64, budget: usize, dress: fn(&mut SiteConfig)) -> (Arc<dyn Handler>, Arc<Memory>) {
    let mut files = FilesConfig::new(ROOT.path());
    files.precompressed = vec![Encoding::Brotli, Encoding::Gzip];
    let hosts = ["edge.example", "*.edge.example", "*.other.example"].map(str::to_owned).to_vec();
    let options = FileOptions { cache_bytes, memory_bytes: budget as u64, ..FileOptions::default() };
    let store = FileStore::new(options).unwrap();
    let mut site = SiteConfig::new(hosts, files);
    dress(&mut site);
    (Arc::new(Sites::new(&[site], &store).unwrap()), Arc::clone(store.memory()))
}

/// Has a site compress what it sends, and every path met by rules of each kind that reads it.
pub(crate) fn dressed(site: &mut SiteConfig) {
    site.compress = Some(CompressOptions::default());
    let rule = |path: &str| PathRule::new(PathPattern::parse(path).unwrap());
    site.rules = (0..64).map(|number| rule(&format!("/nowhere/{number}*.ts"))).collect();
    site.rules.push(PathRule { rewrite: Some(Template::parse("/*", true).unwrap()), ..rule("/again/*") });
    let set = vec![(HeaderName::from_static("x-rule"), HeaderValue::from_static("met"))];
    site.rules.push(PathRule { set, ..rule("/*") });
}

/// A gateway on a link without delay, with a cache of a few blocks. With TURNS=whole its turns are not cut, to see what that
/// is good for.
pub(crate) fn world(tune: fn(&mut Settings)) -> World {
    world_of(tune, PLENTY, |_| {}, None).0
}

/// The same with a budget of memory, of a site that is `dressed`, and with another certificate than an ECDSA one; and what
/// counts its memory.
pub(crate) fn world_of(
    tune: fn(&mut Settings),
    budget: usize,
    dress: fn(&mut SiteConfig),
    certificate: Option<(String, String)>,
) -> (World, Arc<Memory>) {
    SERVES.get_or_init(|| tagged_allocator::serves);
    let slice = match std::env::var("TURNS").as_deref() {
        Ok("whole") => SliceLimit::Pieces(u32::MAX),
        _ => WorkerOptions::default().slice,
    };
    tagged_allocator::serves(true);
    let (handler, memory) = files(1 << 20, budget, dress);
    tagged_allocator::serves(false);
    let handler = Some((handler, Arc::clone(&memory)));
    (Build { link: Link::default(), handler, tune, slice, certificate, ..Build::default() }.world(), memory)
}

/// Clients that may send much at once.
pub(crate) fn client(world: &mut World, port: u16, options: Options) -> usize {
    let options = Options { initial_window: 400, ..options };
    world.add(Client::new(&world.network, &format!("198.51.100.1:{port}"), world.server(), options))
}

/// Established clients, what turns did until then forgotten.
pub(crate) fn clients(world: &mut World, count: u16, options: fn() -> Options) -> Vec<usize> {
    let ids: Vec<_> = (0..count).map(|number| client(world, 5000 + number, options())).collect();
    world.until("connections", |world| world.clients.iter().all(|client| client.http.is_some()));
    world.until("quiet", |world| world.network.in_flight() == 0);
    world.most(0);
    ids
}

/// The longest turn of `run`, which gives the one of a world of its own, in the best of some tries.
pub(crate) fn longest(run: impl Fn() -> Duration) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..TRIES {
        least = least.min(run());
        if least <= BOUND && std::env::var_os("TURNS").is_none() {
            break;
        }
    }
    least
}
