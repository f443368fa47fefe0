//! Values that are one of a few words.

/// Implements `FromStr`, `Display`, `Serialize` and `Deserialize` for a `Copy` type whose associated `NAMES` lists each value with its
/// word: `[(&'static str, Self); N]`. The error for another word lists them all.
#[macro_export]
macro_rules! named {
    ($type:ty) => {
        impl ::std::str::FromStr for $type {
            type Err = ::std::string::String;
            fn from_str(text: &str) -> ::std::result::Result<Self, ::std::string::String> {
                $crate::by_name(text, &Self::NAMES)
            }
        }
        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let name = Self::NAMES.iter().find(|(_, value)| value == self).map_or("?", |(name, _)| name);
                f.write_str(name)
            }
        }
        impl $crate::serde::Serialize for $type {
            fn serialize<S: $crate::serde::Serializer>(
                &self,
                serializer: S,
            ) -> ::std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> $crate::serde::Deserialize<'de> for $type {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                let text = <::std::string::String as $crate::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err($crate::serde::de::Error::custom)
            }
        }
    };
}

/// The value with that name.
///
/// # Errors
/// A sentence that lists the names.
pub fn by_name<T: Copy>(text: &str, names: &[(&'static str, T)]) -> Result<T, String> {
    names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is not one of {}", all.join(", "))
    })
}
