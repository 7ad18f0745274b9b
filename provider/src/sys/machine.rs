//! What kind of machine this is, in words that do not change while it is the same one: what measured times depend on.

use super::cpu;
use std::fs::{File, read_to_string};
use std::io::Read;

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The processor's model, as the kernel names it.
    pub processor: String,
    /// The kernel's release.
    pub kernel: String,
    /// Cores that processes here may be given.
    pub cores: u32,
    /// Who made the virtual machine, `none` on bare metal; `None` if that cannot be told (a container may hide it).
    pub hypervisor: Option<String>,
}

/// This one, as far as /proc and /sys tell.
pub fn here() -> Machine {
    let info = first_core();
    let maker = || first_line("/sys/hypervisor/type").or_else(|| first_line("/sys/class/dmi/id/sys_vendor"));
    Machine {
        processor: processor(&info),
        kernel: first_line("/proc/sys/kernel/osrelease").unwrap_or_default(),
        cores: cpu::online(),
        hypervisor: if is_virtual(&info) { maker() } else { Some("none".into()) },
    }
}

/// What /proc/cpuinfo says of the first core or few: all of it would be megabytes on a large machine.
fn first_core() -> String {
    let mut bytes = Vec::new();
    // As far as it could be read.
    let _ = File::open("/proc/cpuinfo").and_then(|file| file.take(8 << 10).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn first_line(path: &str) -> Option<String> {
    let text = read_to_string(path).ok()?;
    text.lines().next().map(|l| l.trim().to_string()).filter(|l| !l.is_empty())
}

/// The value of the first line that begins with a name.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let line = info.lines().find_map(|l| l.strip_prefix(name))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim_end()).filter(|v| !v.is_empty())
}

/// x86 has a name, Arm has numbers.
fn processor(info: &str) -> String {
    if let Some(name) = field(info, "model name") {
        return name.into();
    }
    let numbers: Vec<&str> = ["CPU implementer", "CPU part", "CPU variant"].into_iter().filter_map(|n| field(info, n)).collect();
    if numbers.is_empty() { "unknown".into() } else { numbers.join(" ") }
}

/// On x86 a flag says so; elsewhere nothing does, and whoever made the board is taken to have made the machine.
fn is_virtual(info: &str) -> bool {
    field(info, "flags").is_none_or(|flags| flags.split_whitespace().any(|f| f == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        let x86 = "processor\t: 0\nmodel name\t: A (R) Processor\nflags\t\t: fpu hypervisor avx\n";
        assert_eq!((processor(x86), is_virtual(x86)), ("A (R) Processor".into(), true));
        assert!(!is_virtual("flags\t: fpu avx\n"));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n";
        assert_eq!(processor(arm), "0x41 0xd0c 0x3");
        assert_eq!(processor(""), "unknown");
    }

    #[test]
    fn it_stays_the_same() {
        let machine = here();
        assert!(machine == here() && machine.cores >= 1 && !machine.processor.is_empty());
    }
}
