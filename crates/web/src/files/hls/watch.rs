//! A playlist for which requests wait.
//!
//! One check serves all waiting requests. Checks are by path, as for every request, rather than by inotify: this needs
//! no rights beyond those for serving, and detects renames and changes on network file systems.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::StatusCode;
use rustix::io::{Errno, pread};

use super::holds::Watches;
use super::playlist::{Playlist, Reached};
use super::{HlsOptions, Wanted, holds::Holds};
use crate::files::FileStore;
use crate::files::lookup::{Found, Tree};
use crate::files::open::{Identity, OpenFile};
use crate::files::store::{Job, Outcome};
use crate::target::{Target, encode_path};
use crate::timer::Alarm;
use crate::{Notify, Wake};
use expressway_metrics::count;

/// From one look to the next: a fraction of the shortest parts.
const INTERVAL: Duration = Duration::from_millis(40);

/// Target durations that a request is held at most (section 6.2.5.2).
const HELD: u32 = 3;

/// Octets of a playlist that is waited for. A live one of a day has less.
const MAX_PLAYLIST: u64 = 4 << 20;

/// How a wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is answered like any other.
    Answer,
    /// It is refused.
    Refuse(StatusCode),
}

#[derive(Debug)]
struct Waiter {
    wanted: Wanted,
    since: Instant,
    wake: Wake,
    verdict: Arc<OnceLock<Verdict>>,
    /// A playlist was seen that is to have what it wants. It is not refused when one has less for a while.
    is_admitted: bool,
}

#[derive(Default)]
struct State {
    waiters: BTreeMap<u64, Waiter>,
    next: u64,
    /// As it was read last.
    identity: Option<Identity>,
    playlist: Option<Playlist>,
    /// Paths that it hints at.
    hints: Vec<Box<[u8]>>,
    /// The playlist that these are of.
    hinting: Option<Playlist>,
    /// Since when what is read ends before that does.
    behind_since: Option<Instant>,
    /// Somebody came for whom more needs to be seen than what was read last.
    has_new: bool,
    /// A reader thread has been asked to look.
    is_looking: bool,
    /// When to look again, or to forget it.
    alarm: Option<Alarm>,
}

/// A playlist, and who waits for it.
pub(super) struct Watch {
    tree: Arc<Tree>,
    pub(super) path: Arc<[u8]>,
    options: HlsOptions,
    store: Weak<FileStore>,
    state: Mutex<State>,
}

/// A request that waits. Dropping it ends that.
pub(crate) struct Registration {
    store: Weak<FileStore>,
    watch: Arc<Watch>,
    id: u64,
    verdict: Arc<OnceLock<Verdict>>,
}

/// What a look at the file has brought.
enum Look {
    Unchanged,
    /// There is no such file, or it cannot be read.
    Missing,
    /// It is no media playlist.
    Other,
    Playlist(Identity, Playlist),
}

impl Watch {
    pub(super) fn new(
        store: &Arc<FileStore>,
        tree: &Arc<Tree>,
        path: Arc<[u8]>,
        options: HlsOptions,
    ) -> Arc<Self> {
        let (tree, store) = (Arc::clone(tree), Arc::downgrade(store));
        Arc::new(Self { tree, path, options, store, state: Mutex::default() })
    }

    pub(super) fn root(&self) -> u64 {
        self.tree.root.id
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request, with the list of watches locked. `None`: there is nothing to wait for.
    pub(super) fn enter(self: Arc<Self>, holds: &Holds, wanted: Wanted, wake: &Wake) -> Option<Registration> {
        let mut state = self.lock();
        // What was seen is there, however long ago; what was not may be by now.
        let judged = state.judge(&wanted);
        if judged == Some(Verdict::Answer) {
            return None;
        }
        state.has_new |= judged.is_some();
        let is_admitted = state.playlist.is_some() && judged.is_none();
        state.next += 1;
        let (id, verdict) = (state.next, Arc::<OnceLock<_>>::default());
        let waiter = Waiter {
            wanted,
            since: Instant::now(),
            wake: wake.clone(),
            verdict: Arc::clone(&verdict),
            is_admitted,
        };
        let is_first = state.waiters.is_empty();
        state.waiters.insert(id, waiter);
        count(&holds.counters.hls_held);
        holds.waiting.fetch_add(1, Ordering::Relaxed);
        if is_first && !state.is_looking {
            self.look(&mut state, holds);
        }
        drop(state);
        Some(Registration { store: self.store.clone(), watch: self, id, verdict })
    }

    /// Asks a reader thread to look, now or, if there are too many jobs, later.
    fn look(self: &Arc<Self>, state: &mut State, holds: &Holds) {
        let Some(store) = self.store.upgrade() else { return };
        let key = Job::Playlist(self.root(), Arc::clone(&self.path));
        let watch = Arc::clone(self);
        state.alarm = None;
        state.is_looking = store.pool.offer(key, 0, move || {
            watch.examine();
            Outcome::Lost
        });
        if !state.is_looking {
            state.alarm = Some(holds.alarms.set(Instant::now() + INTERVAL, self.wake()));
        }
    }

    fn wake(self: &Arc<Self>) -> Wake {
        let notify: Arc<dyn Notify> = Arc::clone(self) as _;
        Wake::new(notify, 0)
    }

    /// Looks at the file, and lets go of those who have what they want. On a reader thread.
    fn examine(self: &Arc<Self>) {
        let Some(store) = self.store.upgrade() else { return };
        let holds = &store.holds;
        let known = self.lock().identity;
        let look = self.read(&store, known);
        let mut watches = holds.lock();
        let mut state = self.lock();
        state.is_looking = false;
        let is_changed = std::mem::take(&mut state.has_new) || !matches!(look, Look::Unchanged);
        match look {
            Look::Unchanged => {}
            Look::Playlist(identity, playlist) => {
                count(&holds.counters.hls_playlists_read);
                state.identity = Some(identity);
                // One that is being written lacks its end, and so its hints; one that stays behind is a new stream.
                let is_behind = state.hinting.as_ref().is_some_and(|old| playlist.is_behind(old));
                let is_new = is_behind
                    && state.behind_since.get_or_insert_with(Instant::now).elapsed() >= playlist.target;
                if self.options.preload_hints && (!is_behind || is_new) {
                    let hints = self.hints(&playlist);
                    watches.change_hints(self, &state.hints, &hints);
                    (state.hints, state.hinting, state.behind_since) = (hints, Some(playlist.clone()), None);
                }
                state.playlist = Some(playlist);
            }
            // Somebody is writing it, if it was a playlist before.
            Look::Other if state.playlist.is_some() => state.identity = None,
            Look::Missing | Look::Other => {
                watches.change_hints(self, &state.hints, &[]);
                let waiters = std::mem::take(&mut state.waiters);
                *state = State { waiters, next: state.next, ..State::default() };
            }
        }
        let let_go = state.let_go(is_changed, self.options.max_hold, holds);
        self.go_on(&mut watches, &mut state, holds);
        drop(state);
        drop(watches);
        let_go.iter().for_each(Wake::wake);
    }

    /// Sees to it that it is looked at again if somebody waits, and forgotten after a while if nobody does: whoever has got
    /// it soon asks for the next.
    fn go_on(self: &Arc<Self>, watches: &mut Watches, state: &mut State, holds: &Holds) {
        if state.is_looking {
            return;
        }
        let target =
            state.playlist.as_ref().filter(|playlist| !playlist.is_over).map(|playlist| playlist.target);
        let time = match target {
            _ if !state.waiters.is_empty() => INTERVAL,
            Some(target) if watches.has_room() => target * HELD,
            _ => {
                let hints = std::mem::take(&mut state.hints);
                watches.remove(self, &hints);
                state.alarm = None;
                return;
            }
        };
        state.alarm = Some(holds.alarms.set(Instant::now() + time, self.wake()));
    }

    fn read(&self, store: &FileStore, known: Option<Identity>) -> Look {
        let Ok(found) = self.tree.look_up(&self.path, false) else { return Look::Missing };
        let found = Arc::new(found);
        let Found::Resource(resource) = &*found else { return Look::Missing };
        let Some(file) = resource.plain.as_ref().map(|plain| &plain.file) else { return Look::Missing };
        if known == Some(file.identity) {
            return Look::Unchanged;
        }
        // Who is let go gets this file, and not one that was opened earlier.
        store.open_files.keep(self.root(), &self.path, &found);
        match text(file) {
            Ok(Some(text)) => match Playlist::parse(&text, file.identity.age.is_kept()) {
                Some(playlist) => Look::Playlist(file.identity, playlist),
                None => Look::Other,
            },
            Ok(None) => Look::Other,
            Err(_) => Look::Missing,
        }
    }

    /// The paths of what a playlist hints at, beside it or below.
    fn hints(&self, playlist: &Playlist) -> Vec<Box<[u8]>> {
        let end = self.path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let folder = encode_path(&self.path[..end]);
        let path = |uri: &str| {
            let target = match uri.starts_with('/') {
                true if uri.starts_with("//") => return None,
                true => uri.to_owned(),
                false if uri.split(['/', '?']).next().is_some_and(|first| first.contains(':')) => {
                    return None;
                }
                false => format!("{folder}{uri}"),
            };
            let path = Target::parse(&target).ok()?.path.into_owned().into_boxed_slice();
            (*path != *self.path).then_some(path)
        };
        playlist.hints.iter().filter_map(|uri| path(uri)).collect()
    }
}

impl Notify for Watch {
    /// On the timer's thread.
    fn notify(&self, _token: u64) {
        let Some(store) = self.store.upgrade() else { return };
        let holds = &store.holds;
        let mut watches = holds.lock();
        let Some(watch) = watches.of(self) else { return };
        let mut state = self.lock();
        if state.is_looking {
            return;
        }
        if state.waiters.is_empty() {
            let hints = std::mem::take(&mut state.hints);
            watches.remove(&watch, &hints);
        } else {
            watch.look(&mut state, holds);
        }
    }
}

/// All of a file, if it is not too long for a playlist.
fn text(file: &OpenFile) -> Result<Option<Vec<u8>>, Errno> {
    let size = file.identity.size;
    if size > MAX_PLAYLIST {
        return Ok(None);
    }
    let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
    let mut length = 0;
    while length < text.len() {
        match pread(&file.fd, &mut text[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(length);
    Ok(Some(text))
}

impl State {
    /// What is to be done with a request by what is known of the playlist. `None`: it waits.
    fn judge(&self, wanted: &Wanted) -> Option<Verdict> {
        let playlist = self.playlist.as_ref()?;
        match wanted {
            Wanted::Reload(reload) => match playlist.reached(*reload) {
                Reached::Yes => Some(Verdict::Answer),
                Reached::NotYet => None,
                Reached::TooFar => Some(Verdict::Refuse(StatusCode::BAD_REQUEST)),
            },
            Wanted::Hinted(path) => (!self.hints.contains(path)).then_some(Verdict::Answer),
        }
    }

    /// Takes out those who need not wait any longer, to be woken: if nothing has changed those who came first.
    fn let_go(&mut self, is_changed: bool, max_hold: Duration, holds: &Holds) -> Vec<Wake> {
        let now = Instant::now();
        let most = self.playlist.as_ref().map_or(max_hold, |playlist| max_hold.min(playlist.target * HELD));
        let is_late = |waiter: &Waiter| now.duration_since(waiter.since) >= most;
        let mut waiters = std::mem::take(&mut self.waiters);
        if !is_changed && let Some((&id, _)) = waiters.iter().find(|(_, waiter)| !is_late(waiter)) {
            self.waiters = waiters.split_off(&id);
        }
        // Of a file that has changed just now more may be to come.
        let is_settled = self.identity.is_some_and(|identity| identity.age.is_kept());
        let mut woken = Vec::new();
        waiters.retain(|_, waiter| {
            let verdict = match &self.playlist {
                None => Some(Verdict::Answer),
                Some(_) => self.judge(&waiter.wanted),
            };
            let is_late = is_late(waiter);
            waiter.is_admitted |= verdict.is_none();
            let is_refused = is_settled && !waiter.is_admitted;
            let verdict = verdict.filter(|verdict| *verdict == Verdict::Answer || is_refused);
            let verdict = match (verdict, &waiter.wanted) {
                (None, Wanted::Reload(_)) if is_late => {
                    count(&holds.counters.hls_timeouts);
                    Verdict::Refuse(StatusCode::SERVICE_UNAVAILABLE)
                }
                // It may be there by now.
                (None, Wanted::Hinted(_)) if is_late => Verdict::Answer,
                (None, _) => return true,
                (Some(verdict), _) => verdict,
            };
            if verdict == Verdict::Refuse(StatusCode::BAD_REQUEST) {
                count(&holds.counters.hls_refused);
            }
            let _ = waiter.verdict.set(verdict);
            woken.push(waiter.wake.clone());
            false
        });
        self.waiters.append(&mut waiters);
        woken
    }
}

impl Registration {
    /// How the wait ends, once it does.
    pub(super) fn poll(&self) -> Option<Verdict> {
        self.verdict.get().copied()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(store) = self.store.upgrade() else { return };
        let holds = &store.holds;
        holds.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut watches = holds.lock();
        let mut state = self.watch.lock();
        if state.waiters.remove(&self.id).is_some() && state.waiters.is_empty() {
            self.watch.go_on(&mut watches, &mut state, holds);
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("path", &self.path.escape_ascii().to_string()).finish_non_exhaustive()
    }
}
