//! One declaration per configuration table: its type, its defaults, and the documentation of its keys.
//!
//! The doc comment of a key is both rustdoc and what `trace config show` prints above it, so the two cannot differ.

use std::path::PathBuf;

/// A key of the configuration and what stands below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name within its table.
    pub name: &'static str,
    /// Its documentation, one line per line of the doc comment.
    pub doc: &'static str,
    /// The keys of the table that is its value; empty for a plain value.
    pub children: Vec<Key>,
    /// True where the value is a list of tables, written `[[name]]`.
    pub list: bool,
}

/// A type that can stand in a configuration and says which keys it has.
pub trait Documented {
    /// The keys of this table in the order of their declaration; none for a plain value.
    fn keys() -> Vec<Key> {
        Vec::new()
    }

    /// Whether this is a list.
    const LIST: bool = false;
}

macro_rules! plain {
    ($($ty:ty),*) => { $(impl Documented for $ty {})* };
}
plain!(bool, u32, u64, f64, String, PathBuf);

impl<T: Documented> Documented for Vec<T> {
    fn keys() -> Vec<Key> {
        T::keys()
    }
    const LIST: bool = true;
}

impl<T: Documented> Documented for Option<T> {
    fn keys() -> Vec<Key> {
        T::keys()
    }
    const LIST: bool = T::LIST;
}

/// Declares a table: `/// doc` lines, then `key: Type = default`.
macro_rules! section {
    ($(#[doc = $section_doc:literal])+ $name:ident { $( $(#[doc = $doc:literal])+ $key:ident : $ty:ty = $default:expr ),+ $(,)? }) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $key: $ty, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $key: $default, )+ }
            }
        }

        impl $crate::config::section::Documented for $name {
            fn keys() -> Vec<$crate::config::section::Key> {
                vec![ $( $crate::config::section::Key {
                    name: stringify!($key),
                    doc: concat!($($doc, "\n"),+),
                    children: <$ty as $crate::config::section::Documented>::keys(),
                    list: <$ty as $crate::config::section::Documented>::LIST,
                } ),+ ]
            }
        }
    };
}
pub(crate) use section;
