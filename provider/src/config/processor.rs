//! For which processors defaults are. Most of them are the same for all; what a copy from one core to another costs is not.

/// Whose defaults to take (`docs/adr/0016-profile.md`, "Shipped for which machine").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processor {
    /// Those of Intel, for which most was measured, and all for which nothing was.
    #[default]
    Usual,
    /// Those of AMD from Zen 3 on, but for Zen 4.
    Zen,
    /// Those of AMD's Zen 4.
    Zen4,
}

impl Processor {
    /// All that are told apart.
    pub const ALL: [Processor; 3] = [Processor::Usual, Processor::Zen, Processor::Zen4];
}
