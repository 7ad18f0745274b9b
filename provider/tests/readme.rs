//! The README's parameter table is the one of `config.rs`. `UPDATE=1 cargo test -p rustmx --test readme` rewrites it.

use rustmx::config::PARAMS;
use rustmx::config::processor::Processor;
use std::fmt::Write;

#[test]
fn parameters_are_those_of_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let text = std::fs::read_to_string(path).expect("README.md");
    let mut table = String::from("\n| variable | default | allowed | what it does |\n|---|---|---|---|\n");
    for p in PARAMS {
        let [usual, zen, zen4] = [Processor::Usual, Processor::Zen, Processor::Zen4].map(|processor| p.default(processor));
        let default = match usual.as_str() {
            "" => "nothing".into(),
            _ if usual == zen && zen == zen4 => usual,
            _ if zen == zen4 => format!("{usual}; AMD from Zen 3: {zen}"),
            _ if usual == zen4 => format!("{usual}; AMD Zen 3 and 5: {zen}"),
            _ => format!("{usual}; AMD Zen 3 and 5: {zen}, Zen 4: {zen4}"),
        };
        let row = (p.env(), default, p.range(), p.help);
        writeln!(table, "| `{}` | {} | {} | {} |", row.0, row.1, row.2, row.3).expect("text");
    }
    let (head, rest) = text.split_once("config.rs -->\n").expect("begin marker");
    let (_, tail) = rest.split_once("<!-- end of parameters -->").expect("end marker");
    let want =
        format!("{head}config.rs -->{table}\n<!-- end of parameters -->{tail}").replacen("config.rs -->\n", "config.rs -->\n", 1);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &want).expect("write");
    } else {
        assert!(text == want, "README.md is out of date: run UPDATE=1 cargo test -p rustmx --test readme");
    }
}
