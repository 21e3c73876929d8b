//! Messages and their parts as tables, which list each field once: what is written, what is read and what it takes
//! follow from that, in the order of the table.

/// Defines structs, each of them a [`WirePiece`](crate::wire::WirePiece): its fields one after the other.
macro_rules! pieces {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
        }
    )*) => { $(
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::wire::WirePiece for $name {
            const SHORTEST: usize = 0 $(+ <$type as $crate::wire::WirePiece>::SHORTEST)*;

            fn put(&self, out: &mut $crate::wire::PieceWriter<'_>) {
                $($crate::wire::WirePiece::put(&self.$field, out);)*
            }

            fn take(from: &mut $crate::wire::Reader) -> Result<Self, $crate::wire::BadMessage> {
                Ok(Self { $($field: $crate::wire::WirePiece::take(from)?,)* })
            }

            fn size(&self) -> usize {
                0 $(+ $crate::wire::WirePiece::size(&self.$field))*
            }
        }
    )* };
}

/// Defines an enum that is a [`WirePiece`](crate::wire::WirePiece): a byte that says which kind it is, then that kind's
/// fields.
///
/// ```text
/// pub enum Name checked by function {      `checked by`: what is read has to be sound by `Name::function`
///     1 => Variant { field: Type },        its fields one after the other
///     2 => Variant { field: Type as way }, as way::put, way::take and way::size have it
///     3 => Variant(value: Type),           as its value has it
///     4 => Variant,                        nothing
///     5 => Variant { .. } as way,          all fields together as way::put, way::take and way::size have them
/// }
/// ```
macro_rules! kinds {
    (
        $(#[$meta:meta])*
        pub enum $name:ident $(checked by $check:ident)? {
            $(
                $(#[$variant_meta:meta])*
                $kind:literal => $variant:ident
                    $({ $($(#[$field_meta:meta])* $field:ident: $type:ty $(as $way:ident)?,)* })?
                    $(($value:ident: $value_type:ty))?
                    $(as $whole:ident)?,
            )*
        }
    ) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$variant_meta])* $variant $({ $($(#[$field_meta])* $field: $type,)* })? $(($value_type))?,)*
        }

        impl $crate::wire::WirePiece for $name {
            const SHORTEST: usize = 1;

            fn put(&self, out: &mut $crate::wire::PieceWriter<'_>) {
                match self {
                    $($name::$variant $({ $($field,)* })? $(($value))? => {
                        $crate::wire::WirePiece::put(&($kind as u8), out);
                        $crate::wire::table::put!(
                            out $(, as $whole)?; $($($field $(as $way)?,)*)? $($value,)?
                        );
                    })*
                }
            }

            fn take(from: &mut $crate::wire::Reader) -> Result<Self, $crate::wire::BadMessage> {
                let read = match <u8 as $crate::wire::WirePiece>::take(from)? {
                    $($kind => $crate::wire::table::take!(
                        from $(, as $whole)?; $name::$variant $({ $($field $(as $way)?,)* })? $(($value))?
                    ),)*
                    kind => {
                        let what = stringify!($name);
                        return Err($crate::wire::BadMessage(format!("there is no {what} of kind {kind}")));
                    }
                };
                $(read.$check()?;)?
                Ok(read)
            }

            fn size(&self) -> usize {
                match self {
                    $($name::$variant $({ $($field,)* })? $(($value))? => {
                        1 + $crate::wire::table::size!(
                            $(as $whole)?; $($($field $(as $way)?,)*)? $($value,)?
                        )
                    })*
                }
            }
        }
    };
}

/// Writes fields.
macro_rules! put {
    ($out:ident, as $whole:ident; $($field:ident,)*) => {
        $whole::put($out, $($field),*)
    };
    ($out:ident;) => {};
    ($out:ident; $field:ident as $way:ident, $($rest:tt)*) => {
        $way::put($out, $field);
        $crate::wire::table::put!($out; $($rest)*);
    };
    ($out:ident; $field:ident, $($rest:tt)*) => {
        $crate::wire::WirePiece::put($field, $out);
        $crate::wire::table::put!($out; $($rest)*);
    };
}

/// Reads a variant.
macro_rules! take {
    ($from:ident, as $whole:ident; $($variant:tt)*) => {
        $whole::take($from)?
    };
    ($from:ident; $name:ident::$variant:ident { $($field:ident $(as $way:ident)?,)* }) => {
        $name::$variant { $($field: $crate::wire::table::take!(@ $from $(, $way)?),)* }
    };
    ($from:ident; $name:ident::$variant:ident ($value:ident)) => {
        $name::$variant($crate::wire::WirePiece::take($from)?)
    };
    ($from:ident; $name:ident::$variant:ident) => {
        $name::$variant
    };
    (@ $from:ident) => {
        $crate::wire::WirePiece::take($from)?
    };
    (@ $from:ident, $way:ident) => {
        $way::take($from)?
    };
}

/// How many bytes fields take.
macro_rules! size {
    (as $whole:ident; $($field:ident,)*) => {
        $whole::size($($field),*)
    };
    (; $($field:ident $(as $way:ident)?,)*) => {
        0 $(+ $crate::wire::table::size!(@ $field $(, $way)?))*
    };
    (@ $field:ident) => {
        $crate::wire::WirePiece::size($field)
    };
    (@ $field:ident, $way:ident) => {
        $way::size($field)
    };
}

pub(crate) use {kinds, pieces, put, size, take};
