//! Mistakes that the simulation has to catch. Outside of it nothing is planted.

/// A mistake in a protocol.
#[cfg_attr(not(test), expect(dead_code, reason = "only the simulation plants mistakes"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Planted {
    #[default]
    Nothing,
    /// A recovery takes silence for absence.
    SilenceEnds,
    /// To a recovery one bookie's absence is enough.
    OneAbsence,
    /// To a recovery one fenced bookie is enough.
    FenceOne,
    /// A recovery fences only the write set of one entry.
    FenceOneSet,
    /// A recovery's reads do not fence.
    ReadsDoNotFence,
    /// A recovery does not write back what it finds.
    NotWrittenBack,
    /// A recovery closes the ledger whatever its metadata are now.
    NoCompare,
    /// A writer acknowledges entries while a change of bookies is on its way.
    AckWhileChanging,
    /// A writer goes on counting what a replaced bookie acknowledged.
    ReplacedCounts,
    /// A writer's new ensemble begins behind all entries that it sent.
    EnsembleTooLate,
    /// To a writer one acknowledgement is enough.
    OneAck,
}
