//! The README's parameter table is the one of `config.rs`. `UPDATE=1 cargo test -p rustmx --test readme` rewrites it.

use rustmx::config::processor::Processor;
use rustmx::config::{PARAMS, Param};
use std::fmt::Write;

#[test]
fn parameters_are_those_of_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let text = std::fs::read_to_string(path).expect("README.md");
    let mut table = String::from("\n| variable | default | allowed | what it does |\n|---|---|---|---|\n");
    for p in PARAMS {
        let usual = p.default(Processor::Usual);
        let default = match usual.as_str() {
            "" => "nothing".into(),
            _ => usual.clone() + &others(p, &usual),
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

/// The defaults of processors that are not the usual one.
fn others(p: &Param, usual: &str) -> String {
    let granite = p.default(Processor::Granite);
    let granite = if granite == usual { String::new() } else { format!("; Intel from Granite Rapids: {granite}") };
    granite + &amd(p, usual)
}

fn amd(p: &Param, usual: &str) -> String {
    let each = [(Processor::Zen3, "3"), (Processor::Zen4, "4"), (Processor::Zen5, "5")].map(|(of, name)| (name, p.default(of)));
    if each.iter().all(|(_, value)| *value == each[0].1) {
        return if each[0].1 == usual { String::new() } else { format!("; AMD from Zen 3: {}", each[0].1) };
    }
    let mut told = Vec::new();
    for (i, (_, value)) in each.iter().enumerate() {
        if value == usual || each[..i].iter().any(|(_, before)| before == value) {
            continue;
        }
        let names: Vec<_> = each.iter().filter(|(_, other)| other == value).map(|(name, _)| *name).collect();
        told.push(format!("Zen {}: {value}", names.join(" and ")));
    }
    format!("; AMD {}", told.join(", "))
}
