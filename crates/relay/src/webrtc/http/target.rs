//! What a request is about, according to its path.

use std::borrow::Cow;

use data_encoding::HEXLOWER_PERMISSIVE as HEX;

use crate::webrtc::answer::Role;
use crate::webrtc::table::Name;

/// Of `/whip/ROOM`, `/whip/ROOM/NAME`, those of WHEP, and `/whep/ROOM/NAME/layer`. A room's name may be percent-encoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) role: Role,
    pub(super) room: Cow<'a, str>,
    pub(super) name: Option<Name>,
    /// It is the layer that the session sees.
    pub(super) is_layer: bool,
}

impl<'a> Target<'a> {
    pub(super) fn parse(target: &'a str) -> Option<Self> {
        let path = target.split('?').next()?.trim_end_matches('/');
        let mut parts = path.strip_prefix('/')?.split('/');
        let role = match parts.next()? {
            "whip" => Role::Publish,
            "whep" => Role::Play,
            _ => return None,
        };
        let room = percent_encoding::percent_decode_str(parts.next()?).decode_utf8().ok()?;
        let name = match parts.next() {
            Some(text) => Some(HEX.decode(text.as_bytes()).ok()?.try_into().ok()?),
            None => None,
        };
        let is_layer = match parts.next() {
            None => false,
            Some("layer") if role == Role::Play => true,
            Some(_) => return None,
        };
        (parts.next().is_none() && !room.is_empty()).then_some(Self { role, room, name, is_layer })
    }

    pub(super) fn word(&self) -> &'static str {
        match self.role {
            Role::Publish => "whip",
            Role::Play => "whep",
        }
    }

    /// The methods that it has.
    pub(super) fn methods(&self) -> &'static str {
        match (self.name, self.is_layer) {
            (None, _) => "POST, OPTIONS",
            (Some(_), true) => "POST, OPTIONS",
            (Some(_), false) => "PATCH, DELETE, OPTIONS",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_rooms_and_sessions() {
        let name = "000102030405060708090a0b0c0d0e0f";
        fn found(target: &str) -> Option<(Role, String, Option<Name>, bool)> {
            Target::parse(target)
                .map(|found| (found.role, found.room.into_owned(), found.name, found.is_layer))
        }
        assert_eq!(found("/whip/studio"), Some((Role::Publish, "studio".into(), None, false)));
        assert_eq!(found("/whep/a%20room/?x=1"), Some((Role::Play, "a room".into(), None, false)));
        let octets: Name = std::array::from_fn(|index| index as u8);
        let session = found(&format!("/whip/studio/{name}"));
        assert_eq!(session, Some((Role::Publish, "studio".into(), Some(octets), false)));
        let layer = found(&format!("/whep/studio/{name}/layer"));
        assert_eq!(layer, Some((Role::Play, "studio".into(), Some(octets), true)));
        for wrong in ["", "/", "/whip", "/whip/", "/whop/a", "/whip/%ff", "whip/a", "/whip//a"] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
        for wrong in ["00", &name[1..], "é00102030405060708090a0b0c0d0e0"] {
            assert_eq!(found(&format!("/whip/studio/{wrong}")), None, "{wrong}");
        }
        for wrong in ["whip/studio/NAME/layer", "whep/studio/NAME/more", "whep/studio/NAME/layer/more"] {
            assert_eq!(found(&format!("/{}", wrong.replace("NAME", name))), None, "{wrong}");
        }
    }
}
