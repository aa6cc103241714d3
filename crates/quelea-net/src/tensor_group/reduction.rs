//! Element types of tensors, and the operations that combine two tensors element by element.
//!
//! Half precision is computed in `f32` and rounded to nearest even after every operation, as
//! PyTorch does it on a CPU.

mod half;

use half::{Bf16, F16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// IEEE binary16.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// 8 bits with a sign.
    I8,
    /// 8 bits without a sign.
    U8,
    /// 16 bits with a sign.
    I16,
    /// 32 bits with a sign.
    I32,
    /// 64 bits with a sign.
    I64,
    /// A byte that is 0 or 1.
    Bool,
}

impl ElementType {
    /// All types, with PyTorch's names.
    pub const ALL: &[(&str, ElementType)] = &[
        ("float32", ElementType::F32),
        ("float64", ElementType::F64),
        ("float16", ElementType::F16),
        ("bfloat16", ElementType::Bf16),
        ("int8", ElementType::I8),
        ("uint8", ElementType::U8),
        ("int16", ElementType::I16),
        ("int32", ElementType::I32),
        ("int64", ElementType::I64),
        ("bool", ElementType::Bool),
    ];

    /// How many bytes an element has.
    pub fn bytes(self) -> usize {
        match self {
            ElementType::I8 | ElementType::U8 | ElementType::Bool => 1,
            ElementType::F16 | ElementType::Bf16 | ElementType::I16 => 2,
            ElementType::F32 | ElementType::I32 => 4,
            ElementType::F64 | ElementType::I64 => 8,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, ElementType::F32 | ElementType::F64 | ElementType::F16 | ElementType::Bf16)
    }
}

/// How elements of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum; of booleans, whether any is true.
    Sum,
    /// The sum divided by the number of ranks; of integers, rounded towards zero.
    Mean,
    /// The product; of booleans, whether all are true.
    Product,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Bits that are set everywhere.
    And,
    /// Bits that are set anywhere.
    Or,
    /// Bits that are set an odd number of times.
    Xor,
}

impl Reduction {
    /// All reductions, with PyTorch's names in lower case.
    pub const ALL: &[(&str, Reduction)] = &[
        ("sum", Reduction::Sum),
        ("avg", Reduction::Mean),
        ("product", Reduction::Product),
        ("min", Reduction::Min),
        ("max", Reduction::Max),
        ("band", Reduction::And),
        ("bor", Reduction::Or),
        ("bxor", Reduction::Xor),
    ];

    fn is_bitwise(self) -> bool {
        matches!(self, Reduction::And | Reduction::Or | Reduction::Xor)
    }
}

/// A reduction of tensors of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reducer {
    element: ElementType,
    reduction: Reduction,
}

impl Reducer {
    /// Refuses bitwise operations on floating point numbers, and the mean of booleans.
    pub fn new(element: ElementType, reduction: Reduction) -> Result<Reducer, String> {
        if reduction.is_bitwise() && element.is_float() {
            return Err(format!(
                "bitwise reductions need integers, not {element:?}: convert the tensor, or view \
                 its bits as integers"
            ));
        }
        if element == ElementType::Bool && reduction == Reduction::Mean {
            return Err("booleans have no mean: convert the tensor to a number type".into());
        }
        Ok(Reducer { element, reduction })
    }

    /// How many bytes an element has.
    pub(super) fn bytes(self) -> usize {
        self.element.bytes()
    }

    /// `into = into ∘ other`, element by element; slices that are no whole elements are refused by
    /// a panic.
    pub(super) fn combine(self, into: &mut [u8], other: &[u8]) {
        match self.element {
            ElementType::F32 => combine::<f32>(self.reduction, into, other),
            ElementType::F64 => combine::<f64>(self.reduction, into, other),
            ElementType::F16 => combine::<F16>(self.reduction, into, other),
            ElementType::Bf16 => combine::<Bf16>(self.reduction, into, other),
            ElementType::I8 => combine::<i8>(self.reduction, into, other),
            ElementType::U8 => combine::<u8>(self.reduction, into, other),
            ElementType::I16 => combine::<i16>(self.reduction, into, other),
            ElementType::I32 => combine::<i32>(self.reduction, into, other),
            ElementType::I64 => combine::<i64>(self.reduction, into, other),
            ElementType::Bool => combine_booleans(self.reduction, into, other),
        }
    }

    /// What is left to do with the reduction over `ranks` ranks.
    pub(super) fn complete(self, data: &mut [u8], ranks: usize) {
        if self.reduction != Reduction::Mean {
            return;
        }
        match self.element {
            ElementType::F32 => divide::<f32>(data, ranks),
            ElementType::F64 => divide::<f64>(data, ranks),
            ElementType::F16 => divide::<F16>(data, ranks),
            ElementType::Bf16 => divide::<Bf16>(data, ranks),
            ElementType::I8 => divide::<i8>(data, ranks),
            ElementType::U8 => divide::<u8>(data, ranks),
            ElementType::I16 => divide::<i16>(data, ranks),
            ElementType::I32 => divide::<i32>(data, ranks),
            ElementType::I64 => divide::<i64>(data, ranks),
            ElementType::Bool => {}
        }
    }
}

/// What reductions need of a type. Bytes have the order of this machine: all ranks must agree.
trait Element: Copy + bytemuck::Pod + PartialOrd {
    fn add(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, ranks: usize) -> Self;
    fn bits(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self;
}

macro_rules! float {
    ($type:ty) => {
        impl Element for $type {
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn over(self, ranks: usize) -> Self {
                self / ranks as $type
            }
            fn bits(self, _: Self, _: impl Fn(u64, u64) -> u64) -> Self {
                unreachable!("refused when the reducer was made")
            }
        }
    };
}

macro_rules! integer {
    ($type:ty) => {
        impl Element for $type {
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn over(self, ranks: usize) -> Self {
                // More ranks than an element can count leave nothing of any sum.
                <$type>::try_from(ranks).map_or(0, |ranks| self / ranks)
            }
            fn bits(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
                operation(self as u64, other as u64) as $type
            }
        }
    };
}

float!(f32);
float!(f64);
integer!(i8);
integer!(u8);
integer!(i16);
integer!(i32);
integer!(i64);

macro_rules! half_float {
    ($type:ty) => {
        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.widen().partial_cmp(&other.widen())
            }
        }
        impl Element for $type {
            fn add(self, other: Self) -> Self {
                <$type>::round(self.widen() + other.widen())
            }
            fn times(self, other: Self) -> Self {
                <$type>::round(self.widen() * other.widen())
            }
            fn over(self, ranks: usize) -> Self {
                <$type>::round(self.widen() / ranks as f32)
            }
            fn bits(self, _: Self, _: impl Fn(u64, u64) -> u64) -> Self {
                unreachable!("refused when the reducer was made")
            }
        }
    };
}

half_float!(F16);
half_float!(Bf16);

fn combine<T: Element>(reduction: Reduction, into: &mut [u8], other: &[u8]) {
    match reduction {
        Reduction::Sum | Reduction::Mean => each::<T>(into, other, |a, b| a.add(b)),
        Reduction::Product => each::<T>(into, other, |a, b| a.times(b)),
        Reduction::Min => each::<T>(into, other, |a, b| if b < a { b } else { a }),
        Reduction::Max => each::<T>(into, other, |a, b| if b > a { b } else { a }),
        Reduction::And => each::<T>(into, other, |a, b| a.bits(b, |a, b| a & b)),
        Reduction::Or => each::<T>(into, other, |a, b| a.bits(b, |a, b| a | b)),
        Reduction::Xor => each::<T>(into, other, |a, b| a.bits(b, |a, b| a ^ b)),
    }
}

fn combine_booleans(reduction: Reduction, into: &mut [u8], other: &[u8]) {
    match reduction {
        Reduction::Sum | Reduction::Mean | Reduction::Max | Reduction::Or => {
            each::<u8>(into, other, |a, b| u8::from(a | b != 0));
        }
        Reduction::Product | Reduction::Min | Reduction::And => {
            each::<u8>(into, other, |a, b| u8::from(a != 0 && b != 0));
        }
        Reduction::Xor => each::<u8>(into, other, |a, b| u8::from((a != 0) != (b != 0))),
    }
}

fn each<T: bytemuck::Pod>(into: &mut [u8], other: &[u8], operation: impl Fn(T, T) -> T) {
    assert_eq!(into.len(), other.len(), "both have as many elements");
    match (bytemuck::try_cast_slice_mut::<u8, T>(into), bytemuck::try_cast_slice::<u8, T>(other)) {
        (Ok(into), Ok(other)) => {
            for (a, b) in into.iter_mut().zip(other) {
                *a = operation(*a, *b);
            }
        }
        // Views may begin at any byte.
        _ => {
            let size = size_of::<T>();
            for (a, b) in into.chunks_exact_mut(size).zip(other.chunks_exact(size)) {
                let value: T =
                    operation(bytemuck::pod_read_unaligned(a), bytemuck::pod_read_unaligned(b));
                a.copy_from_slice(bytemuck::bytes_of(&value));
            }
        }
    }
}

fn divide<T: Element>(data: &mut [u8], ranks: usize) {
    for element in data.chunks_exact_mut(size_of::<T>()) {
        let value = bytemuck::pod_read_unaligned::<T>(element).over(ranks);
        element.copy_from_slice(bytemuck::bytes_of(&value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined<T: bytemuck::Pod>(
        element: ElementType,
        reduction: Reduction,
        a: &[T],
        b: &[T],
    ) -> Vec<T> {
        let mut into = a.to_vec();
        let reducer = Reducer::new(element, reduction).expect("supported");
        reducer.combine(bytemuck::cast_slice_mut(&mut into), bytemuck::cast_slice(b));
        reducer.complete(bytemuck::cast_slice_mut(&mut into), 2);
        into
    }

    #[test]
    fn every_reduction_of_integers_has_its_value() {
        let expected = [
            (Reduction::Sum, [9, -2]),
            (Reduction::Mean, [4, -1]),
            (Reduction::Product, [18, -15]),
            (Reduction::Min, [3, -5]),
            (Reduction::Max, [6, 3]),
            (Reduction::And, [2, 3]),
            (Reduction::Or, [7, -5]),
            (Reduction::Xor, [5, -8]),
        ];
        for (reduction, values) in expected {
            assert_eq!(combined(ElementType::I32, reduction, &[3, -5], &[6, 3]), values);
            assert_eq!(
                combined(ElementType::I64, reduction, &[3i64, -5], &[6, 3]),
                values.map(i64::from)
            );
            assert_eq!(
                combined(ElementType::I8, reduction, &[3i8, -5], &[6, 3]),
                values.map(|value| value as i8)
            );
        }
    }

    #[test]
    fn booleans_stay_zero_or_one() {
        let (a, b) = ([0u8, 0, 1, 1], [0u8, 1, 0, 1]);
        for (reduction, values) in [
            (Reduction::Sum, [0, 1, 1, 1]),
            (Reduction::Max, [0, 1, 1, 1]),
            (Reduction::Product, [0, 0, 0, 1]),
            (Reduction::Min, [0, 0, 0, 1]),
            (Reduction::Xor, [0, 1, 1, 0]),
        ] {
            assert_eq!(combined(ElementType::Bool, reduction, &a, &b), values);
        }
    }

    #[test]
    fn unaligned_tensors_are_reduced() {
        let mut bytes = [0u8; 9];
        bytes[1..5].copy_from_slice(&1.5f32.to_ne_bytes());
        bytes[5..9].copy_from_slice(&2.0f32.to_ne_bytes());
        let reducer = Reducer::new(ElementType::F32, Reduction::Sum).expect("supported");
        let other = bytes;
        reducer.combine(&mut bytes[1..], &other[1..]);
        assert_eq!(bytes[1..5], 3.0f32.to_ne_bytes());
        assert_eq!(bytes[5..9], 4.0f32.to_ne_bytes());
    }

    #[test]
    fn bitwise_operations_on_floats_and_means_of_booleans_are_refused() {
        assert!(Reducer::new(ElementType::F16, Reduction::And).is_err());
        assert!(Reducer::new(ElementType::Bool, Reduction::Mean).is_err());
    }
}
