//! Words of one-sided records that need more than a bound: what an atomic operation does, and how an operation ended.

use crate::error::Error;
use crate::types::{Access, AtomicForm, AtomicOp, AtomicType};

/// Most bytes of operands that one operation on one piece of memory may have: operands and comparands fit one record of the smallest ring.
pub const MAX_BYTES: usize = 768;

/// What an atomic operation does, on all its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The operation.
    pub op: AtomicOp,
    /// Of which type.
    pub kind: AtomicType,
    /// What it gives back.
    pub form: AtomicForm,
}

impl Order {
    /// The word that travels; `bytes` of the target it works on.
    pub fn emit(self, bytes: usize) -> u64 {
        self.op as u64 | (self.kind as u64) << 8 | (self.form as u64) << 16 | (bytes as u64) << 32
    }

    /// Validates a word that came from a peer: the order, and the bytes of the target that it works on.
    pub fn parse(word: u64) -> Option<(Order, usize)> {
        let byte = |n: u32| u32::from((word >> n) as u8);
        let form = match byte(16) {
            0 => AtomicForm::Base,
            1 => AtomicForm::Fetch,
            2 => AtomicForm::Compare,
            _ => return None,
        };
        let (op, kind) = (AtomicOp::from_number(byte(0)), AtomicType::from_number(byte(8)));
        let order = Order { op: op?, kind: kind?, form };
        let bytes = (word >> 32) as usize;
        let sound = bytes <= MAX_BYTES && bytes.is_multiple_of(order.kind.bytes()) && is_valid(order.op, order.kind, order.form);
        sound.then_some((order, bytes))
    }

    /// Rights that it needs.
    pub fn access(self) -> Access {
        match (self.op, self.form) {
            (AtomicOp::Read, _) => Access::REMOTE_READ,
            (_, AtomicForm::Base) => Access::REMOTE_WRITE,
            _ => Access::REMOTE_READ | Access::REMOTE_WRITE,
        }
    }

    /// Whether operands travel.
    pub fn has_operands(self) -> bool {
        self.op != AtomicOp::Read
    }
}

/// Whether an operation makes sense for a type in this form.
pub fn is_valid(op: AtomicOp, kind: AtomicType, form: AtomicForm) -> bool {
    use AtomicOp::*;
    let compares = matches!(op, Swap | SwapNe | SwapLe | SwapLt | SwapGe | SwapGt | MaskedSwap);
    let suits_form = match form {
        AtomicForm::Base => !compares && op != Read,
        AtomicForm::Fetch => !compares,
        AtomicForm::Compare => compares,
    };
    let complex = matches!(kind, AtomicType::ComplexF32 | AtomicType::ComplexF64);
    let float = complex || matches!(kind, AtomicType::F32 | AtomicType::F64);
    let needs_order = matches!(op, Min | Max | SwapLe | SwapLt | SwapGe | SwapGt);
    let needs_bits = matches!(op, BitOr | BitAnd | BitXor | MaskedSwap);
    suits_form && !(needs_order && complex) && !(needs_bits && float)
}

/// Header word 1 of an answer: how a piece of an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The initiator's name for the operation.
    pub id: u32,
    /// Which of its pieces.
    pub piece: u16,
    /// Whether it is done, or why not.
    pub outcome: Result<(), Error>,
}

impl Ending {
    /// The word that travels.
    pub fn emit(self) -> u64 {
        u64::from(self.id) | u64::from(self.piece) << 32 | status_of(self.outcome) << 48
    }

    /// Validates a word that came from a peer; whether there is such an operation is the initiator's business.
    pub fn parse(word: u64) -> Option<Ending> {
        let outcome = outcome_of(word >> 48)?.map_or(Ok(()), Err);
        Some(Ending { id: word as u32, piece: (word >> 32) as u16, outcome })
    }
}

/// What an answer says of an operation.
fn status_of(outcome: Result<(), Error>) -> u64 {
    match outcome {
        Ok(()) => 0,
        Err(Error::NoKey) => 1,
        Err(Error::NoRight) => 2,
        Err(Error::OutOfBounds) => 3,
        Err(Error::Unmapped) => 4,
        Err(Error::NoResources) => 6,
        Err(_) => 5,
    }
}

/// Validates what a peer's answer says: `Some(None)`, it is done; `Some(Some(_))`, why not.
fn outcome_of(status: u64) -> Option<Option<Error>> {
    Some(match status {
        0 => None,
        1 => Some(Error::NoKey),
        2 => Some(Error::NoRight),
        3 => Some(Error::OutOfBounds),
        4 => Some(Error::Unmapped),
        5 => Some(Error::Unsupported),
        6 => Some(Error::NoResources),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_and_types() {
        use AtomicOp::*;
        assert!(!is_valid(Read, AtomicType::I8, AtomicForm::Base) && is_valid(Read, AtomicType::I8, AtomicForm::Fetch));
        assert!(!is_valid(Swap, AtomicType::I8, AtomicForm::Fetch) && is_valid(Swap, AtomicType::F32, AtomicForm::Compare));
        assert!(
            !is_valid(BitOr, AtomicType::F64, AtomicForm::Base) && !is_valid(MaskedSwap, AtomicType::F64, AtomicForm::Compare)
        );
        assert!(
            !is_valid(Max, AtomicType::ComplexF32, AtomicForm::Base) && is_valid(Sum, AtomicType::ComplexF32, AtomicForm::Base)
        );
    }

    #[test]
    fn words_of_peers_are_orders_or_nothing() {
        let order = Order { op: AtomicOp::Sum, kind: AtomicType::U64, form: AtomicForm::Fetch };
        assert_eq!(Order::parse(order.emit(64)), Some((order, 64)));
        assert_eq!(Order::parse(order.emit(63)), None, "no whole values");
        assert_eq!(Order::parse(order.emit(MAX_BYTES + 8)), None, "too long");
        assert_eq!(Order::parse(Order { form: AtomicForm::Compare, ..order }.emit(8)), None, "no such form");
        assert_eq!(Order::parse(u64::MAX), None);
    }

    #[test]
    fn endings_survive_the_way() {
        for end in [
            Ok(()),
            Err(Error::NoKey),
            Err(Error::NoRight),
            Err(Error::OutOfBounds),
            Err(Error::Unmapped),
            Err(Error::Unsupported),
        ] {
            assert_eq!(outcome_of(status_of(end)), Some(end.err()));
        }
        assert_eq!(outcome_of(99), None);
        let ending = Ending { id: 0x1234_5678, piece: 0x9abc, outcome: Err(Error::OutOfBounds) };
        assert_eq!(ending.emit(), 0x0003_9abc_1234_5678);
        assert_eq!(Ending::parse(ending.emit()), Some(ending));
        assert_eq!(Ending::parse(ending.emit() | 99 << 48), None);
    }
}
