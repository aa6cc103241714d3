//! What entries of every table say of themselves.

use crate::options::OptionSpec;

/// The part that all tables have in common: what people read, type and cite.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// The name that people type.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Where it was published; empty where there is nothing to cite.
    pub paper: &'static str,
    /// Where in the paper: an algorithm, an equation, or a section where its number is not certain.
    pub section: &'static str,
    /// The file that implements it.
    pub file: &'static str,
    /// The options that it takes.
    pub options: &'static [OptionSpec],
}
