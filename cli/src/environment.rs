//! The configuration that the environment asks for, read as the provider reads it.

use rustmx::Config;
use rustmx::config::echo::escaped;
use rustmx::config::{ENV_PREFIX, PARAMS, unknown_variable};
use rustmx::select::complaint;
use rustmx::sys::processor;

/// The configuration, and a sentence for everything in the environment that cannot be meant.
pub(crate) fn read() -> (Config, Vec<String>) {
    let mut config = Config::on(processor::here());
    let mut complaints = Vec::new();
    for p in PARAMS {
        if let Some(text) = std::env::var_os(p.env())
            && let Err(why) = p.parse_into(&mut config, &text.to_string_lossy())
        {
            complaints.push(why);
        }
    }
    complaints.extend(complaint(&config));
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    complaints.extend(names.filter(|n| n.starts_with(ENV_PREFIX)).filter_map(|n| unknown_variable(&n)));
    (config, complaints)
}

/// What is set otherwise than by default, to be shown: `NAME=value`.
pub(crate) fn settings(config: &Config) -> Vec<String> {
    PARAMS.iter().filter(|p| p.is_set(config)).map(|p| format!("{}={}", p.env(), escaped(&p.value(config)))).collect()
}
