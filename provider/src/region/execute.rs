//! Atomic operations on values in memory (fi_atomic(3)), as the target's engine executes them: one at a time, which is what makes them
//! atomic with respect to each other.
//!
//! Everything here works on copies: the engine takes the target's values out, [`execute`] combines them, the engine puts them back.

use crate::types::{AtomicOp, AtomicType};

/// A value in memory.
trait Value: Copy + PartialEq {
    const BYTES: usize;
    fn get(bytes: &[u8]) -> Self;
    fn put(self, bytes: &mut [u8]);
    fn truth(self) -> bool;
    fn of_truth(truth: bool) -> Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// `None` where there is no order (complex numbers) or no answer (NaN).
    fn less(self, other: Self) -> Option<bool>;
    /// `None` for numbers that are no bit patterns.
    fn bits(self, other: Self, combine: fn(u128, u128) -> u128) -> Option<Self>;
}

macro_rules! read_and_write {
    ($t:ty) => {
        const BYTES: usize = size_of::<$t>();
        fn get(bytes: &[u8]) -> $t {
            let mut raw = [0; size_of::<$t>()];
            raw.copy_from_slice(bytes);
            <$t>::from_ne_bytes(raw)
        }
        fn put(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

macro_rules! integers {
    ($($t:ty)*) => { $(
        impl Value for $t {
            read_and_write!($t);
            fn truth(self) -> bool { self != 0 }
            fn of_truth(truth: bool) -> $t { truth.into() }
            fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
            fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
            fn less(self, other: $t) -> Option<bool> { Some(self < other) }
            fn bits(self, other: $t, combine: fn(u128, u128) -> u128) -> Option<$t> {
                Some(combine(self as u128, other as u128) as $t)
            }
        }
    )* };
}
integers!(i8 u8 i16 u16 i32 u32 i64 u64 i128 u128);

macro_rules! floats {
    ($($t:ty)*) => { $(
        impl Value for $t {
            read_and_write!($t);
            fn truth(self) -> bool { self != 0.0 }
            fn of_truth(truth: bool) -> $t { if truth { 1.0 } else { 0.0 } }
            fn plus(self, other: $t) -> $t { self + other }
            fn times(self, other: $t) -> $t { self * other }
            fn less(self, other: $t) -> Option<bool> { self.partial_cmp(&other).map(|o| o.is_lt()) }
            fn bits(self, _: $t, _: fn(u128, u128) -> u128) -> Option<$t> { None }
        }
    )* };
}
floats!(f32 f64);

#[derive(Clone, Copy, PartialEq)]
struct Complex<T>(T, T);

macro_rules! complexes {
    ($($t:ty)*) => { $(
        impl Value for Complex<$t> {
            const BYTES: usize = 2 * size_of::<$t>();
            fn get(bytes: &[u8]) -> Self {
                let (re, im) = bytes.split_at(size_of::<$t>());
                Complex(<$t>::get(re), <$t>::get(im))
            }
            fn put(self, bytes: &mut [u8]) {
                let (re, im) = bytes.split_at_mut(size_of::<$t>());
                self.0.put(re);
                self.1.put(im);
            }
            fn truth(self) -> bool { self.0.truth() || self.1.truth() }
            fn of_truth(truth: bool) -> Self { Complex(<$t>::of_truth(truth), 0.0) }
            fn plus(self, o: Self) -> Self { Complex(self.0 + o.0, self.1 + o.1) }
            fn times(self, o: Self) -> Self { Complex(self.0 * o.0 - self.1 * o.1, self.0 * o.1 + self.1 * o.0) }
            fn less(self, _: Self) -> Option<bool> { None }
            fn bits(self, _: Self, _: fn(u128, u128) -> u128) -> Option<Self> { None }
        }
    )* };
}
complexes!(f32 f64);

/// The new value, or `None` if it stays. `has` is in memory, `give` the operand, `with` the comparand (compare forms only).
fn combine<T: Value>(op: AtomicOp, has: T, give: T, with: T) -> Option<T> {
    // "compare < target" and so on (fi_atomic(3)); not true where there is no order.
    let below = || with.less(has).unwrap_or(false);
    let above = || has.less(with).unwrap_or(false);
    match op {
        AtomicOp::Min => give.less(has)?.then_some(give),
        AtomicOp::Max => has.less(give)?.then_some(give),
        AtomicOp::Sum => Some(has.plus(give)),
        AtomicOp::Prod => Some(has.times(give)),
        AtomicOp::LogicalOr => Some(T::of_truth(has.truth() || give.truth())),
        AtomicOp::LogicalAnd => Some(T::of_truth(has.truth() && give.truth())),
        AtomicOp::LogicalXor => Some(T::of_truth(has.truth() != give.truth())),
        AtomicOp::BitOr => has.bits(give, |a, b| a | b),
        AtomicOp::BitAnd => has.bits(give, |a, b| a & b),
        AtomicOp::BitXor => has.bits(give, |a, b| a ^ b),
        AtomicOp::Read => None,
        AtomicOp::Write => Some(give),
        AtomicOp::Swap => (with == has).then_some(give),
        AtomicOp::SwapNe => (with != has).then_some(give),
        AtomicOp::SwapLe => (below() || with == has).then_some(give),
        AtomicOp::SwapLt => below().then_some(give),
        AtomicOp::SwapGe => (above() || with == has).then_some(give),
        AtomicOp::SwapGt => above().then_some(give),
        AtomicOp::MaskedSwap => {
            let (set, kept) = (give.bits(with, |a, b| a & b)?, has.bits(with, |a, b| a & !b)?);
            set.bits(kept, |a, b| a | b)
        }
    }
}

fn all<T: Value>(op: AtomicOp, target: &mut [u8], operands: &[u8], comparands: &[u8]) {
    for (i, place) in target.chunks_exact_mut(T::BYTES).enumerate() {
        let has = T::get(place);
        let value = |of: &[u8]| of.get(i * T::BYTES..(i + 1) * T::BYTES).map_or(has, T::get);
        if let Some(new) = combine(op, has, value(operands), value(comparands)) {
            new.put(place);
        }
    }
}

/// Applies `op` to each value of `target`, with the operands and, in a compare form, the comparands at the same places.
pub fn execute(op: AtomicOp, kind: AtomicType, target: &mut [u8], operands: &[u8], comparands: &[u8]) {
    let run = match kind {
        AtomicType::I8 => all::<i8>,
        AtomicType::U8 => all::<u8>,
        AtomicType::I16 => all::<i16>,
        AtomicType::U16 => all::<u16>,
        AtomicType::I32 => all::<i32>,
        AtomicType::U32 => all::<u32>,
        AtomicType::I64 => all::<i64>,
        AtomicType::U64 => all::<u64>,
        AtomicType::F32 => all::<f32>,
        AtomicType::F64 => all::<f64>,
        AtomicType::ComplexF32 => all::<Complex<f32>>,
        AtomicType::ComplexF64 => all::<Complex<f64>>,
        AtomicType::I128 => all::<i128>,
        AtomicType::U128 => all::<u128>,
    };
    run(op, target, operands, comparands);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<T: Value>(op: AtomicOp, kind: AtomicType, has: T, give: T, with: T) -> T {
        let bytes = |v: T| {
            let mut b = vec![0; T::BYTES];
            v.put(&mut b);
            b
        };
        let mut target = bytes(has);
        execute(op, kind, &mut target, &bytes(give), &bytes(with));
        T::get(&target)
    }

    #[test]
    fn what_the_manual_says() {
        use AtomicOp::*;
        let i = |op, has: i32, give, with| one(op, AtomicType::I32, has, give, with);
        assert_eq!([i(Min, 5, -3, 0), i(Min, -3, 5, 0), i(Max, 5, -3, 0), i(Max, -3, 5, 0)], [-3, -3, 5, 5]);
        assert_eq!([i(Sum, i32::MAX, 1, 0), i(Prod, -4, 3, 0), i(Write, 1, 9, 0), i(Read, 1, 9, 0)], [i32::MIN, -12, 9, 1]);
        assert_eq!([i(LogicalOr, 0, 7, 0), i(LogicalAnd, 3, 0, 0), i(LogicalXor, 3, 7, 0)], [1, 0, 0]);
        assert_eq!([i(BitOr, 6, 9, 0), i(BitAnd, 6, 3, 0), i(BitXor, 6, 3, 0)], [15, 2, 5]);
        // compare against target: equal, below, above
        for (op, want) in [
            (Swap, [9, 4, 4]),
            (SwapNe, [4, 9, 9]),
            (SwapLe, [9, 9, 4]),
            (SwapLt, [4, 9, 4]),
            (SwapGe, [9, 4, 9]),
            (SwapGt, [4, 4, 9]),
        ] {
            assert_eq!([4, 3, 5].map(|with| i(op, 4, 9, with)), want, "{op:?}");
        }
        assert_eq!(i(MaskedSwap, 0x1234, 0xabcd, 0x0ff0), 0x1bc4);
        assert_eq!(one(Sum, AtomicType::U8, 250u8, 10, 0), 4);
        assert_eq!(one(Max, AtomicType::U64, 1u64, u64::MAX, 0), u64::MAX);
        assert_eq!(one(Min, AtomicType::I128, -5i128, i128::MIN, 0), i128::MIN);
        assert_eq!(one(BitXor, AtomicType::U128, u128::MAX, 1, 0), u128::MAX - 1);
        assert_eq!(one(Prod, AtomicType::F64, 1.5, -2.0, 0.0), -3.0);
        assert_eq!(one(Min, AtomicType::F32, 1.0f32, f32::NAN, 0.0), 1.0);
        assert!(one(Prod, AtomicType::ComplexF64, Complex(1.0, 2.0), Complex(3.0, -1.0), Complex(0.0, 0.0)) == Complex(5.0, 5.0));
        assert!(
            one(LogicalAnd, AtomicType::ComplexF32, Complex(0f32, 2.0), Complex(3.0, 0.0), Complex(0.0, 0.0))
                == Complex(1.0, 0.0)
        );
    }

    #[test]
    fn every_value_of_a_vector_is_worked_on() {
        let mut target: Vec<u8> = (0u16..10).flat_map(u16::to_ne_bytes).collect();
        let operands: Vec<u8> = (0u16..10).flat_map(|v| (100 * v).to_ne_bytes()).collect();
        execute(AtomicOp::Sum, AtomicType::U16, &mut target, &operands, &[]);
        assert_eq!(target, (0u16..10).flat_map(|v| (101 * v).to_ne_bytes()).collect::<Vec<u8>>());
    }
}
