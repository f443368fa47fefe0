//! Metadata of URLs: in memory as far as its budget allows, and on disk.

use std::sync::{Arc, Mutex, PoisonError};

use expressway_web::blocks::{BlockKey, BlockSource};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::bans::{Bans, Effect};
use crate::codec;
use crate::disk::{Disk, Id};
use crate::key::Key;
use crate::object::{Entry, Object};
use crate::policy;

/// An entry's memory on average, to size tables by.
const USUAL: usize = 1 << 10;

#[derive(Debug, Clone)]
struct ByFootprint;

impl Weighter<u128, Arc<Entry>> for ByFootprint {
    fn weight(&self, _key: &u128, entry: &Arc<Entry>) -> u64 {
        entry.footprint() as u64
    }
}

/// Where an entry is.
#[derive(Debug)]
pub(crate) enum Found {
    Memory(Arc<Entry>),
    /// To be read by [`Heads::record`].
    Disk,
    Nowhere,
}

/// All entries.
#[derive(Debug)]
pub(crate) struct Heads {
    cache: Cache<u128, Arc<Entry>, ByFootprint>,
    /// Held while an entry is replaced.
    update: Mutex<()>,
    pub(crate) bans: Bans,
    disk: Option<Arc<Disk>>,
}

impl Heads {
    pub(crate) fn new(octets: usize, bans: Bans, disk: Option<Arc<Disk>>) -> Self {
        let items = (octets / USUAL).max(16);
        let shards = (octets / (256 << 10)).clamp(1, 64).next_power_of_two();
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(octets as u64)
            .shards(shards)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                ByFootprint,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with_weighter(items, octets as u64, ByFootprint),
        };
        Self { cache, update: Mutex::default(), bans, disk }
    }

    pub(crate) fn find(&self, key: &Key) -> Found {
        match self.cache.get(&key.hash) {
            Some(entry) if entry.key == key.text => Found::Memory(entry),
            Some(_) => Found::Nowhere,
            None if self.disk.as_ref().is_some_and(|disk| disk.has(Id::Record(key.hash))) => Found::Disk,
            None => Found::Nowhere,
        }
    }

    /// The name of the reading of a key's record.
    pub(crate) fn record(key: &Key) -> BlockKey {
        BlockKey { source: BlockSource::record(key.hash), index: 0 }
    }

    /// Takes in what was read of a key's record. Another one that was stored meanwhile counts more.
    pub(crate) fn take_in(&self, key: &Key, octets: &[u8]) {
        let Some(mut entry) = codec::decode(octets) else {
            tracing::warn!("cache: dropping a record on disk in an unknown format");
            self.remove(key.hash);
            return;
        };
        let now = policy::now();
        entry.variants.retain_mut(|object| match self.bans.effect(&entry.key, object) {
            Effect::Stays => true,
            Effect::Stale => {
                Arc::make_mut(object).freshness.expire(now);
                true
            }
            Effect::Gone => false,
        });
        let _update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        if entry.variants.is_empty() || entry.key != key.text {
            if entry.key == key.text && self.cache.peek(&key.hash).is_none() {
                self.remove(key.hash);
            }
            return;
        }
        if self.cache.peek(&key.hash).is_none() {
            self.cache.insert(key.hash, Arc::new(entry));
        }
    }

    /// Puts `object` in the place of the variant that it replaces. `purges` is the number of the last purge when its
    /// request was sent: if another came meanwhile that it is subject to, it is not kept. What it replaced.
    pub(crate) fn store(
        &self,
        key: &Key,
        object: &Arc<Object>,
        known: Option<Arc<Entry>>,
    ) -> Option<Arc<Object>> {
        if self.bans.effect(&key.text, object) != Effect::Stays {
            return None;
        }
        let _update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.cache.peek(&key.hash).or(known).filter(|entry| entry.key == key.text);
        let empty = || Arc::new(Entry { key: key.text.clone(), variants: Vec::new() });
        let (entry, replaced) = old.unwrap_or_else(empty).with(Arc::clone(object));
        self.put(key.hash, entry);
        replaced
    }

    /// Replaces one version of an object by another with the same body. False if it is there no more.
    pub(crate) fn refresh(&self, key: &Key, object: &Arc<Object>) -> bool {
        let _update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(old) = self.cache.peek(&key.hash).filter(|entry| entry.key == key.text) else {
            return false;
        };
        let Some(at) = old.variants.iter().position(|other| other.version == object.version) else {
            return false;
        };
        let mut entry = Entry { key: old.key.clone(), variants: old.variants.clone() };
        entry.variants[at] = Arc::clone(object);
        self.put(key.hash, entry);
        true
    }

    fn put(&self, hash: u128, entry: Entry) {
        if let Some(disk) = &self.disk {
            disk.write_record(hash, codec::encode(&entry));
        }
        self.cache.insert(hash, Arc::new(entry));
    }

    /// Forgets a URL. Variants that it had in memory, or `true` if it was on disk.
    pub(crate) fn remove(&self, hash: u128) -> (usize, bool) {
        let variants = self.cache.remove(&hash).map_or(0, |(_, entry)| entry.variants.len());
        let on_disk = self.disk.as_ref().is_some_and(|disk| disk.remove_record(hash));
        (variants, on_disk)
    }

    /// Forgets a version, whose body turned out not to be there any more.
    pub(crate) fn remove_version(&self, key: &Key, version: u64) {
        let _update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(old) = self.cache.peek(&key.hash).filter(|entry| entry.key == key.text) else { return };
        let mut entry = Entry { key: old.key.clone(), variants: old.variants.clone() };
        entry.variants.retain(|object| object.version != version);
        match entry.variants.len() {
            length if length == old.variants.len() => {}
            0 => {
                self.remove(key.hash);
            }
            _ => self.put(key.hash, entry),
        }
    }

    /// Makes stale what is known of a URL. Variants that were.
    pub(crate) fn expire(&self, key: &Key) -> usize {
        let _update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(old) = self.cache.peek(&key.hash).filter(|entry| entry.key == key.text) else { return 0 };
        self.put(key.hash, expired(&old));
        old.variants.len()
    }

    /// Applies a purge of many to what is in memory. Variants that it concerned.
    pub(crate) fn apply(&self, ban: &crate::bans::Ban) -> usize {
        let concerned: Vec<(u128, Arc<Entry>)> = self
            .cache
            .iter()
            .filter(|(_, entry)| entry.variants.iter().any(|object| ban.is_about(&entry.key, object)))
            .collect();
        let mut variants = 0;
        for (hash, _) in concerned {
            let _update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(old) = self.cache.peek(&hash) else { continue };
            let mut entry = if ban.is_soft { expired(&old) } else { Entry::clone(&old) };
            let about = |object: &Arc<Object>| ban.is_about(&old.key, object);
            variants += old.variants.iter().filter(|object| about(object)).count();
            if ban.is_soft {
                for (object, old) in entry.variants.iter_mut().zip(&old.variants) {
                    if !about(old) {
                        *object = Arc::clone(old);
                    }
                }
            } else {
                entry.variants.retain(|object| !about(object));
            }
            if entry.variants.is_empty() {
                self.remove(hash);
            } else {
                self.put(hash, entry);
            }
        }
        variants
    }

    /// Octets in memory, and entries.
    pub(crate) fn levels(&self) -> (u64, usize) {
        (self.cache.weight(), self.cache.len())
    }
}

fn expired(entry: &Entry) -> Entry {
    let now = policy::now();
    let expire = |object: &Arc<Object>| {
        let mut object = Object::clone(object);
        object.freshness.expire(now);
        Arc::new(object)
    };
    Entry { key: entry.key.clone(), variants: entry.variants.iter().map(expire).collect() }
}
