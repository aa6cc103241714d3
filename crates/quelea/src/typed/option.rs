//! What the structs and enums of algorithms are made with.

use quelea_core::algorithms::{self, Entry};
use quelea_core::options::{Options, Value};

/// The type of a field.
pub(super) trait TypedOption: Sized {
    /// The checked value of the option.
    fn read(options: &Options, name: &str) -> Self;

    /// As it is given to a run.
    fn value(self) -> Value;
}

impl TypedOption for f64 {
    fn read(options: &Options, name: &str) -> f64 {
        options.real(name)
    }

    fn value(self) -> Value {
        Value::Number(self)
    }
}

impl TypedOption for u64 {
    fn read(options: &Options, name: &str) -> u64 {
        options.whole(name)
    }

    fn value(self) -> Value {
        self.into()
    }
}

impl TypedOption for bool {
    fn read(options: &Options, name: &str) -> bool {
        options.flag(name)
    }

    fn value(self) -> Value {
        Value::Flag(self)
    }
}

impl TypedOption for String {
    fn read(options: &Options, name: &str) -> String {
        options.text(name).to_string()
    }

    fn value(self) -> Value {
        Value::Text(self)
    }
}

impl TypedOption for Vec<f64> {
    fn read(options: &Options, name: &str) -> Vec<f64> {
        options.reals(name).to_vec()
    }

    fn value(self) -> Value {
        Value::Numbers(self)
    }
}

/// The built-in entry of this name.
pub(super) fn entry(name: &str) -> &'static Entry {
    algorithms::find(name).expect("the structs are made from the table of algorithms")
}

/// One struct per algorithm: its default from the entry, and the choice that it is.
macro_rules! algorithms {
    ($(
        $(#[$doc:meta])*
        $name:ident = $word:literal { $( $(#[$field_doc:meta])* $field:ident: $type:ty, )* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $name { $( $(#[$field_doc])* pub $field: $type, )* }

            impl $name {
                fn read(_options: &Options) -> $name {
                    $name { $( $field: TypedOption::read(_options, stringify!($field)), )* }
                }
            }

            impl Default for $name {
                /// The defaults of the entry.
                fn default() -> $name {
                    $name::read(&Options::defaults(entry($word).meta.options))
                }
            }

            impl From<$name> for Choice<Entry> {
                fn from(algorithm: $name) -> Choice<Entry> {
                    let $name { $( $field, )* } = algorithm;
                    let choice = Choice::from(entry($word));
                    $( let choice = choice.with(stringify!($field), TypedOption::value($field)); )*
                    choice
                }
            }
        )*

        /// Every algorithm's name, and the choice that its struct makes of checked options.
        #[cfg(test)]
        pub(super) const STRUCTS: &[(&str, fn(&Options) -> Choice<Entry>)] =
            &[$( ($word, |options| $name::read(options).into()), )*];
    };
}

/// One enum per option that is one of several words.
macro_rules! words {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $variant:ident = $word:literal, )* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $name { $( #[doc = concat!("`", $word, "`")] $variant, )* }

            impl TypedOption for $name {
                fn read(options: &Options, name: &str) -> $name {
                    match options.text(name) {
                        $( $word => $name::$variant, )*
                        other => unreachable!("`{other}` is not in the table that this is made from"),
                    }
                }

                fn value(self) -> Value {
                    match self { $( $name::$variant => Value::from($word), )* }
                }
            }
        )*
    };
}
