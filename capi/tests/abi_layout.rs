//! The mirror in `src/abi` against the installed libfabric headers: a C program, compiled here, prints the size of every
//! structure, offset and size of every field and the value of every constant that the mirror has. Fields that a later libfabric
//! appended are checked against the headers if those are new enough, and against the table below always.

mod support;

use rustmx_fi::abi;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Structures that grew since 1.17: (first version that has the field, structure, field, offset). Contract 2.1.
const APPENDED: &[((u32, u32), &str, &str, usize)] = &[
    ((1, 20), "fi_domain_attr", "max_ep_auth_key", 192),
    ((2, 0), "fi_domain_attr", "max_group_id", 200),
    ((2, 5), "fi_domain_attr", "max_cntr_value", 208),
    ((2, 5), "fi_domain_attr", "max_err_cntr_value", 216),
    ((1, 20), "fi_ops_av", "insert_auth_key", 64),
    ((1, 20), "fi_ops_av", "lookup_auth_key", 72),
    ((1, 20), "fi_ops_av", "set_user_id", 80),
    ((1, 19), "fi_mr_attr", "hmem_data", 80),
    ((1, 22), "fi_mr_attr", "page_size", 88),
    ((2, 0), "fi_mr_attr", "base_mr", 96),
    ((2, 0), "fi_mr_attr", "sub_mr_cnt", 104),
    ((1, 20), "fi_cq_err_entry", "src_addr", 80),
];

/// The libfabric whose headers the mirror ends with.
const MIRROR: (u32, u32) = (2, 6);

const HEADERS: &[&str] = &[
    "fabric.h",
    "fi_domain.h",
    "fi_endpoint.h",
    "fi_eq.h",
    "fi_cm.h",
    "fi_tagged.h",
    "fi_rma.h",
    "fi_atomic.h",
    "fi_trigger.h",
    "fi_errno.h",
    "providers/fi_prov.h",
    "providers/fi_log.h",
];

fn appended(structure: &str, field: &str) -> Option<&'static ((u32, u32), &'static str, &'static str, usize)> {
    APPENDED.iter().find(|(_, s, f, _)| (*s, *f) == (structure, field))
}

fn c_name(field: &str) -> &str {
    field.trim_start_matches("r#")
}

/// `key value…` lines of the program as a map. Tests run side by side, so each has a program of its own.
fn ask_the_compiler(test: &str) -> HashMap<String, Vec<u64>> {
    let mut c = String::from("#include <stdio.h>\n#include <stddef.h>\n#include <sys/uio.h>\n");
    for h in HEADERS {
        writeln!(c, "#include <rdma/{h}>").expect("text");
    }
    writeln!(c, "#include \"{}/../include/rustmx/fi_ext_rustmx.h\"", env!("CARGO_MANIFEST_DIR")).expect("text");
    c += "#define SIZE(s) printf(\"%s %zu\\n\", #s, sizeof(struct s));\n";
    c += "#define FIELD(s, f) printf(\"%s.%s %zu %zu\\n\", #s, #f, offsetof(struct s, f), sizeof(((struct s *)0)->f));\n";
    c += "#define VALUE(c) printf(\"%s %llu\\n\", #c, (unsigned long long)(c));\n";
    c += "int main(void) {\nVALUE(FI_MAJOR_VERSION) VALUE(FI_MINOR_VERSION)\n";
    for s in abi::structs() {
        writeln!(c, "SIZE({})", s.name).expect("text");
        for f in s.fields {
            let since = appended(s.name, f.name).map(|a| a.0);
            if let Some((major, minor)) = since {
                writeln!(c, "#if FI_MAJOR_VERSION * 1000 + FI_MINOR_VERSION >= {major} * 1000 + {minor}").expect("text");
            }
            writeln!(c, "FIELD({}, {})", s.name, c_name(f.name)).expect("text");
            if since.is_some() {
                c += "#endif\n";
            }
        }
    }
    for (name, _) in abi::constants() {
        writeln!(c, "VALUE({name})").expect("text");
    }
    c += "return 0;\n}\n";

    let dir = support::scratch(&format!("abi_layout-{test}"));
    let (source, program) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&source, c).expect("write");
    // Later headers call some of these names deprecated.
    support::compile(&source, &program, &["-w"]);
    let out = support::run(&mut std::process::Command::new(&program), Duration::from_secs(10));
    let mut answers = HashMap::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let mut words = line.split(' ');
        let key = words.next().expect("a name").to_string();
        answers.insert(key, words.map(|w| w.parse().expect("a number")).collect());
    }
    answers
}

#[test]
fn the_mirror_agrees_with_the_installed_headers() {
    let c = ask_the_compiler("mirror");
    let version = (c["FI_MAJOR_VERSION"][0] as u32, c["FI_MINOR_VERSION"][0] as u32);
    let mut wrong = Vec::new();
    let (mut fields, mut constants) = (0, 0);
    for s in abi::structs() {
        // What the headers do not have yet ends the structure earlier.
        let missing = APPENDED.iter().filter(|(since, st, ..)| *st == s.name && *since > version);
        let expect = missing.map(|(.., at)| *at).min().unwrap_or(s.size) as u64;
        let size = c[s.name][0];
        if size != expect && (version <= MIRROR || size < expect) {
            wrong.push(format!("sizeof(struct {}): C {size}, mirror {expect}", s.name));
        }
        for f in s.fields {
            match (c.get(&format!("{}.{}", s.name, c_name(f.name))), appended(s.name, f.name)) {
                (Some(got), _) if got[..] == [f.offset as u64, f.size as u64] => fields += 1,
                (None, Some((since, ..))) if *since > version => {}
                (got, _) => {
                    wrong.push(format!("{}.{}: C {got:?}, mirror {} {}", s.name, f.name, f.offset, f.size));
                }
            }
        }
    }
    for (name, value) in abi::constants() {
        constants += 1;
        if c[*name][0] != *value {
            wrong.push(format!("{name}: C {:#x}, mirror {value:#x}", c[*name][0]));
        }
    }
    assert!(wrong.is_empty(), "libfabric {version:?}:\n{}", wrong.join("\n"));
    assert!(fields > 200 && constants > 120, "{fields} fields, {constants} constants: the lists are not complete");
}

/// Options of 2.x: an `enum` goes on where 1.17's ended.
#[test]
fn appended_constants_have_the_values_of_later_headers() {
    let last = ask_the_compiler("appended")["FI_OPT_FI_HMEM_P2P"][0];
    let names: Vec<_> = abi::endpoint::APPENDED.iter().map(|(name, _)| *name).collect();
    assert_eq!(names[0], "FI_OPT_CUDA_API_PERMITTED");
    for (i, (name, value)) in abi::endpoint::APPENDED.iter().enumerate() {
        // FI_OPT_XPU_TRIGGER is between.
        assert_eq!(*value, last + 2 + i as u64, "{name}");
    }
}

#[test]
fn appended_fields_are_where_later_headers_have_them() {
    for (_, structure, field, offset) in APPENDED {
        let s = abi::structs().find(|s| s.name == *structure).expect(structure);
        let f = s.fields.iter().find(|f| f.name == *field).expect(field);
        assert_eq!(f.offset, *offset, "{structure}.{field}");
    }
    for (name, size) in [("fi_domain_attr", 224), ("fi_ops_av", 88), ("fi_mr_attr", 112), ("fi_cq_err_entry", 88)] {
        let s = abi::structs().find(|s| s.name == name).expect(name);
        assert_eq!(s.size, size, "{name}");
    }
}
