//! Which copy engines are used for what: by the user's word, and where none is said by what was measured (`docs/adr/0018-copy-engines.md`);
//! and why, for people.

use crate::config::Config;
use crate::mem::aliased;
use crate::mem::engine::Engine;

/// Bytes of the shortest message in mapped memory that `FI_RUSTMX_COPY=streaming` copies past the caches: shorter ones lie in the nearest cache.
const STREAM_FROM: usize = 64 << 10;

/// How records are copied, if they are long enough ([`Engine::from`]).
pub fn records_by(config: &Config) -> Engine {
    let said = match config.record_copy {
        1 => Engine::Ahead,
        2 => Engine::Vectors,
        3 => Engine::Abreast,
        _ => Engine::Plain,
    };
    if said.is_there() { said } else { Engine::Plain }
}

/// The same of memory that a process has lent.
pub fn lent_by(config: &Config) -> Engine {
    if config.copy == 1 { Engine::Plain } else { records_by(config) }
}

/// Bytes of the shortest one that goes that way. `auto`: none, for it pays only if nobody reads what arrives.
pub fn stream_from(config: &Config) -> usize {
    if config.copy == 2 { STREAM_FROM } else { usize::MAX }
}

/// Bytes of the shortest message that the helper thread copies, too. `room`: it may run on a core that no rank needs.
pub fn help_from(config: &Config, room: bool) -> usize {
    match config.copy_thread {
        0 => usize::MAX,
        1 if !room => usize::MAX,
        _ => config.copy_thread_min as usize,
    }
}

/// An engine beside `memcpy`, and whether it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineUse {
    /// Its name.
    pub name: &'static str,
    /// Bytes of the shortest message with which it copies; `None`: it is off.
    pub from: Option<usize>,
    /// Why so.
    pub why: &'static str,
}

/// Whether the streaming stores of this processor are used at all (`mem/engine.rs`).
const HAS_STREAMING: bool = cfg!(target_arch = "x86_64");

/// All of them. `room`: as of [`help_from`]; `None`: that depends on the job.
pub fn uses(config: &Config, room: Option<bool>) -> [EngineUse; 6] {
    let record = |engine: Engine, set: u64, (on, missing): (&'static str, &'static str)| match config.record_copy {
        _ if records_by(config) == engine => (Some(engine.from()), on),
        now if now == set => (None, missing),
        0 => (None, "FI_RUSTMX_RECORD_COPY=memcpy: it pays on some processors only; rustmx tune finds out"),
        1 => (None, "FI_RUSTMX_RECORD_COPY=ahead"),
        2 => (None, "FI_RUSTMX_RECORD_COPY=vectors"),
        _ => (None, "FI_RUSTMX_RECORD_COPY=abreast"),
    };
    let said = (
        "FI_RUSTMX_RECORD_COPY=ahead: what other cores have just written, of messages below 256 KiB",
        "FI_RUSTMX_RECORD_COPY=ahead: this processor has no AVX",
    );
    let (from, why) = record(Engine::Ahead, 1, said);
    let ahead = EngineUse { name: "lines asked for ahead", from, why };
    let said = (
        "FI_RUSTMX_RECORD_COPY=vectors: what goes by cells (FI_RUSTMX_RINGS=open or taken), and lent memory, of messages below 32 KiB",
        "FI_RUSTMX_RECORD_COPY=vectors: this processor has no AVX-512",
    );
    let (from, why) = record(Engine::Vectors, 2, said);
    let vectors = EngineUse { name: "vectors of a line", from, why };
    let said = (
        "FI_RUSTMX_RECORD_COPY=abreast: what goes by cells (FI_RUSTMX_RINGS=open or taken), and lent memory; in two stretches from 12 KiB on",
        "FI_RUSTMX_RECORD_COPY=abreast: this processor has no AVX",
    );
    let (from, why) = record(Engine::Abreast, 3, said);
    let abreast = EngineUse { name: "stretches side by side", from, why };
    let nothing_mapped = config.lend == 2;
    let (from, why) = match config.copy {
        _ if nothing_mapped => (None, "FI_RUSTMX_LEND=never: no memory is mapped in which they could copy"),
        0 => (None, "FI_RUSTMX_COPY=auto: measured to pay only where nobody reads what arrives"),
        1 => (None, "FI_RUSTMX_COPY=plain"),
        _ if HAS_STREAMING => (Some(stream_from(config)), "FI_RUSTMX_COPY=streaming: in mapped memory"),
        _ => (None, "FI_RUSTMX_COPY=streaming: for this processor there are none"),
    };
    let streaming = EngineUse { name: "streaming stores", from, why };
    let (on, why) = match (config.copy_thread, room) {
        _ if nothing_mapped && config.cma != 0 => {
            (false, "FI_RUSTMX_CMA=never and FI_RUSTMX_LEND=never: no message is copied by one of several")
        }
        (0, _) => {
            (false, "FI_RUSTMX_COPY_THREAD=never: it pays only where a core is idle, and threads of the program may need it")
        }
        (1, None) => (true, "FI_RUSTMX_COPY_THREAD=auto: where ranks are fewer than the cores they share"),
        (1, Some(true)) => (true, "FI_RUSTMX_COPY_THREAD=auto: ranks are fewer than the cores they share"),
        (1, Some(false)) => {
            (false, "FI_RUSTMX_COPY_THREAD=auto: ranks need all the cores that they share, or this process has but one")
        }
        _ => (true, "FI_RUSTMX_COPY_THREAD=always"),
    };
    let from = on.then(|| help_from(config, room.unwrap_or(true)));
    let helper = EngineUse { name: "helper thread", from, why };
    let (from, why) = match aliased::trips() {
        true => (
            Some(aliased::FROM),
            "where bytes end up 1 to 31 bytes further in their page than they lay: this processor's rep movsb, which memcpy and the kernel use, is slow there",
        ),
        false => (
            None,
            "this processor's rep movsb was not found slow where bytes end up a little further in their page than they lay",
        ),
    };
    [ahead, vectors, abreast, streaming, helper, EngineUse { name: "aliased copies", from, why }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_told_as_it_is_used() {
        let told = |config: &Config, room| uses(config, room).map(|e| (e.from, e.why));
        let plain = Config::default();
        let [ahead, vectors, abreast, stores, helper, aliased] = told(&plain, None);
        assert_eq!(aliased.0.is_some(), aliased::trips(), "{}", aliased.1);
        assert!([ahead, vectors, abreast].iter().all(|one| one.0.is_none() && one.1.contains("RECORD_COPY=memcpy")));
        for (set, engine, missing) in
            [(1, Engine::Ahead, "no AVX"), (2, Engine::Vectors, "no AVX-512"), (3, Engine::Abreast, "no AVX")]
        {
            let has = engine.is_there();
            let config = Config { record_copy: set, ..Config::default() };
            let mut all = told(&config, None)[..3].to_vec();
            let this = all.remove(set as usize - 1);
            assert_eq!((this.0, this.1.ends_with(missing)), (has.then_some(engine.from()), !has));
            assert!(all.iter().all(|other| other.0.is_none()), "{all:?}");
            let by = [0, 1, 2].map(|copy| lent_by(&Config { copy, ..config.clone() }) != Engine::Plain);
            assert_eq!(by, [true, false, true].map(|yes| yes && has));
        }
        assert!(stores.0.is_none() && stores.1.contains("COPY=auto") && helper.0.is_none() && helper.1.contains("THREAD=never"));
        for copy in 0..=2 {
            for thread in 0..=2 {
                for room in [false, true] {
                    let config = Config { copy, copy_thread: thread, ..Config::default() };
                    let [.., stores, helper, _] = told(&config, Some(room));
                    let want = |from: usize| (from != usize::MAX).then_some(from);
                    assert_eq!(
                        (stores.0, helper.0),
                        (want(stream_from(&config)).filter(|_| HAS_STREAMING), want(help_from(&config, room)))
                    );
                }
            }
        }
        let never = Config { copy: 2, copy_thread: 2, lend: 2, cma: 1, ..Config::default() };
        let [.., stores, helper, _] = told(&never, Some(true));
        assert!(stores.0.is_none() && stores.1.contains("LEND=never") && helper.0.is_none() && helper.1.contains("CMA=never"));
        // The kernel still copies: there is something to help with.
        assert!(told(&Config { cma: 0, ..never }, Some(true))[4].0.is_some());
    }
}
