//! Names that the running kernel gives to its own numbers.

use std::collections::BTreeMap;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Enum, EnumMember};

/// The names of this kernel's `enum skb_drop_reason` without their prefix, in small letters; empty without BTF.
pub fn drop_reasons() -> BTreeMap<u32, String> {
    let Ok(types) = Btf::from_vmlinux() else { return BTreeMap::new() };
    let Some(reasons) = types.type_by_name::<Enum<'_>>("skb_drop_reason") else { return BTreeMap::new() };
    let name = |member: EnumMember<'_>| {
        let name = member.name?.to_str()?;
        let name = name.strip_prefix("SKB_DROP_REASON_").or_else(|| name.strip_prefix("SKB_"))?;
        Some((u32::try_from(member.value).ok()?, name.to_lowercase()))
    };
    reasons.iter().filter_map(name).collect()
}
