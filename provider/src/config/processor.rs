//! For which processors defaults are. Most of them are the same for all; what a copy from one core to another costs is not.

/// Whose defaults to take (`docs/adr/0016-profile.md`, "Shipped for which machine").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processor {
    /// Those of Intel before Granite Rapids, of which Sapphire Rapids was measured most, and all for which nothing was.
    #[default]
    Usual,
    /// Those of Intel's Granite Rapids, and of large cores for servers that come after it.
    Granite,
    /// Those of AMD's Zen 3.
    Zen3,
    /// Those of AMD's Zen 4.
    Zen4,
    /// Those of AMD's Zen 5, and of what comes after it.
    Zen5,
}

impl Processor {
    /// All that are told apart.
    pub const ALL: [Processor; 5] = [Processor::Usual, Processor::Granite, Processor::Zen3, Processor::Zen4, Processor::Zen5];
}
