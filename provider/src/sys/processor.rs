//! Whose processor this machine has.

use crate::config::processor::Processor;

/// That of this core. A virtual machine is told what its host says.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn here() -> Processor {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let maker = __cpuid(0);
    // The highest leaf, and of leaf 7 the highest part.
    let features = match maker.eax {
        7.. => {
            let first = __cpuid_count(7, 0);
            [first.edx, if first.eax >= 1 { __cpuid_count(7, 1).edx } else { 0 }]
        }
        _ => [0; 2],
    };
    match maker.eax {
        0 => Processor::Usual,
        _ => of([maker.ebx, maker.edx, maker.ecx], __cpuid(1).eax, features),
    }
}

/// Others than x86-64 are not told apart.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub fn here() -> Processor {
    Processor::Usual
}

/// By the maker's name, the signature and some features, as CPUID has them: leaf 0, EAX of leaf 1 (AMD64 Architecture Programmer's Manual vol. 3, appendix E), EDX of leaf 7's parts 0 and 1
/// (Intel's Architecture Instruction Set Extensions Programming Reference, "CPUID"). Intel's are told by features: a hypervisor was seen to name another model, and to hide some others.
#[cfg_attr(any(not(target_arch = "x86_64"), miri), expect(dead_code))]
fn of(maker: [u32; 3], signature: u32, features: [u32; 2]) -> Processor {
    /// AVX-512 of half-precision numbers, which Intel's large cores for servers have from Sapphire Rapids on; PREFETCHIT0 and 1, which servers have from Granite Rapids on, those of small
    /// cores, too.
    const GRANITE: [u32; 2] = [1 << 23, 1 << 14];
    /// The family of Zen 3 and 4; that of Zen 5 is the next one.
    const ZEN_3_AND_4: u32 = 0x19;
    let mut name = [0; 12];
    for (four, word) in name.chunks_exact_mut(4).zip(maker) {
        four.copy_from_slice(&word.to_le_bytes());
    }
    let family = match signature >> 8 & 0xf {
        0xf => 0xf + (signature >> 20 & 0xff),
        family => family,
    };
    match (signature >> 16 & 0xf) << 4 | signature >> 4 & 0xf {
        _ if name == *b"GenuineIntel" && features.iter().zip(GRANITE).all(|(has, bit)| has & bit != 0) => Processor::Granite,
        _ if name != *b"AuthenticAMD" || family < ZEN_3_AND_4 => Processor::Usual,
        // Genoa and Bergamo, the desktop's and laptops' ones: the processors that the kernel takes for Zen 4 (Linux, arch/x86/kernel/cpu/amd.c).
        0x10..=0x1f | 0x60..=0xaf if family == ZEN_3_AND_4 => Processor::Zen4,
        _ if family == ZEN_3_AND_4 => Processor::Zen3,
        _ => Processor::Zen5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_and_family() {
        let words =
            |name: &[u8; 12]| [0, 4, 8].map(|at| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]));
        let (amd, intel) = (words(b"AuthenticAMD"), words(b"GenuineIntel"));
        for (maker, signature, want) in [
            (amd, 0x00b0_0f21, Processor::Zen5),  // Zen 5: family 26
            (amd, 0x00a1_0f11, Processor::Zen4),  // Zen 4: family 25, model 17
            (amd, 0x00aa_0f02, Processor::Zen4),  // model 160
            (amd, 0x00a6_0f12, Processor::Zen4),  // model 97
            (amd, 0x00a0_0f11, Processor::Zen3),  // Zen 3: family 25, model 1
            (amd, 0x00a5_0f00, Processor::Zen3),  // model 80
            (amd, 0x0083_0f10, Processor::Usual), // Zen 2: family 23
            (amd, 0x0000_0f4a, Processor::Usual), // before Zen
            (intel, 0x0008_06f8, Processor::Usual),
            (intel, 0x00b0_0f21, Processor::Usual),
        ] {
            // All but one bit.
            for features in [[!0, !(1 << 14)], [!(1 << 23), !0]] {
                assert_eq!(of(maker, signature, features), want, "{signature:x}");
            }
        }
        for signature in [0x000a_06d1, 0x000a_0671] {
            assert_eq!(
                of(intel, signature, [1 << 23, 1 << 14]),
                Processor::Granite,
                "Granite Rapids, and what one was seen to call itself"
            );
        }
        assert_eq!(of(amd, 0x00b0_0f21, [!0; 2]), Processor::Zen5, "who makes it goes before what it can do");
    }

    #[test]
    fn the_same_as_the_kernel_says() {
        let info = std::fs::read_to_string("/proc/cpuinfo").expect("proc");
        let says = |name: &str, least: u32| {
            let value = info.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(':').nth(1)).map(str::trim);
            value.is_some_and(|value| value == "AuthenticAMD" || value.parse().is_ok_and(|n: u32| n >= least))
        };
        let zen = says("vendor_id", u32::MAX) && says("cpu family", 0x19);
        assert_eq!(!matches!(here(), Processor::Usual | Processor::Granite), zen);
        // The first processor with these instructions of AMD's had them in that core.
        let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
        assert!(here() != Processor::Zen4 || has("avx512f"), "Zen 3 has none of {flags}");
        assert!(here() != Processor::Granite || has("avx512_fp16"), "Sapphire Rapids had them before: {flags}");
    }
}
