//! Messages as tables.

/// Defines messages, and the structs in them, with their fields in the order of the wire:
///
/// ```text
/// Name {
///     field: Type,                  in all versions
///     field: Type [4..],            from version 4 on
///     field: Type [0..=3] = -1,     up to version 3; -1 where it is not on the wire
/// } + tagged {
///     0 => field: Type [12..],      a tagged field, left out where it has its default
/// }
/// ```
macro_rules! messages {
    ($($name:ident {
        $($field:ident: $type:ty $([$($range:tt)*])? $(= $default:expr)?,)*
    } $(+ tagged {
        $($tag:literal => $tfield:ident: $ttype:ty $([$($trange:tt)*])? $(= $tdefault:expr)?,)*
    })?)*) => { $(
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(pub $field: $type,)*
            $($(pub $tfield: $ttype,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: default!($type $(, $default)?),)*
                    $($($tfield: default!($ttype $(, $tdefault)?),)*)?
                }
            }
        }

        impl $crate::wire::Wire for $name {
            fn write(&self, writer: &mut $crate::wire::Writer) {
                let version = writer.version();
                let _ = version;
                $(if in_range!(version $(, $($range)*)?) {
                    $crate::wire::Wire::write(&self.$field, writer);
                })*
                if writer.is_flexible() {
                    #[allow(unused_mut)]
                    let mut tagged = Vec::new();
                    $($(if in_range!(version $(, $($trange)*)?)
                        && self.$tfield != (default!($ttype $(, $tdefault)?))
                    {
                        let value =
                            writer.apart(|writer| $crate::wire::Wire::write(&self.$tfield, writer));
                        tagged.push(($tag, value));
                    })*)?
                    writer.tagged(tagged);
                }
            }

            fn read(
                reader: &mut $crate::wire::Reader,
            ) -> Result<Self, $crate::wire::Malformed> {
                let version = reader.version();
                let _ = version;
                #[allow(unused_mut)]
                let mut message = Self::default();
                $(if in_range!(version $(, $($range)*)?) {
                    message.$field = $crate::wire::Wire::read(reader)?;
                })*
                if reader.is_flexible() {
                    #[allow(unused_variables)]
                    reader.tagged(|tag, value| {
                        $($(if tag == $tag && in_range!(version $(, $($trange)*)?) {
                            message.$tfield = $crate::wire::Wire::read(value)?;
                            return Ok(true);
                        })*)?
                        Ok(false)
                    })?;
                }
                Ok(message)
            }
        }

        impl $crate::wire::Wire for Option<$name> {
            fn write(&self, writer: &mut $crate::wire::Writer) {
                $crate::wire::Wire::write(&if self.is_some() { 1_i8 } else { -1 }, writer);
                if let Some(value) = self {
                    $crate::wire::Wire::write(value, writer);
                }
            }

            fn read(
                reader: &mut $crate::wire::Reader,
            ) -> Result<Self, $crate::wire::Malformed> {
                match <i8 as $crate::wire::Wire>::read(reader)? {
                    -1 => Ok(None),
                    _ => <$name as $crate::wire::Wire>::read(reader).map(Some),
                }
            }
        }
    )* };
}

/// The value of a field that is not on the wire.
macro_rules! default {
    ($type:ty) => {
        <$type as Default>::default()
    };
    ($type:ty, $default:expr) => {
        $default
    };
}

/// Whether a field is there in a version.
macro_rules! in_range {
    ($version:ident) => {
        true
    };
    ($version:ident, $($range:tt)*) => {
        ($($range)*).contains(&$version)
    };
}
