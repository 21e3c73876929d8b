//! Writer and reader together, over real cells: three backends each, replicated three times, read through memory.

mod cells;
mod following;
mod random;

pub(crate) use cells::{TestCell, in_runtime, until};
