//! Mistakes that the tests have to catch. Outside of them nothing is planted.

/// One mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))] // only tests make them
pub(crate) enum ShardMistake {
    /// None.
    #[default]
    Nothing,
    /// A segment leaves the store when it is copied, before metadata names its copy.
    LeavesBeforeNamed,
    /// A segment whose copy is to be kept is removed before it has one.
    RemovedWithoutCopy,
    /// A copy goes before metadata has forgotten it.
    CopyGoesFirst,
}
