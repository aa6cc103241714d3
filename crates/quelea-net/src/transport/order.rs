//! The order of frames over all links of a rank.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

/// A link whose frames wait for those of others.
pub(crate) trait OrderedLink: fmt::Debug {
    /// Writes what is allowed now.
    fn write_released(&self);
}

/// Which frames of one rank may be written, over all its links.
///
/// With partners that change from step to step, a rank that is done early would send its next model
/// over the network card that its last one still needs, or that of a peer who is not done yet. All
/// wait for the slowest, so what is early gains nothing; what is late falls behind further at every
/// step. Four hosts in changing pairs with 100 Mbit/s, 25 MB: 2.3 to 2.4 s a step in order, 2.6 to
/// 3.3 s without. With several neighbours at once, one whose card is busy would hold up all others;
/// a ring of four took about as long with the order as without (4.9 and 5.0 s).
#[derive(Debug, Default)]
pub(crate) struct WriteOrder {
    is_kept: bool,
    /// How many frames of each step are not written, if there is an order.
    unwritten: RefCell<BTreeMap<u64, usize>>,
    links: RefCell<Vec<Weak<dyn OrderedLink>>>,
}

impl WriteOrder {
    /// Of a rank that waits for one changing partner at a time, if `is_kept`; otherwise there is no
    /// order.
    pub(crate) fn new(is_kept: bool) -> Rc<WriteOrder> {
        Rc::new(WriteOrder { is_kept, ..WriteOrder::default() })
    }

    /// A link of the same rank.
    pub(super) fn join(&self, link: &Rc<dyn OrderedLink>) {
        self.links.borrow_mut().push(Rc::downgrade(link));
    }

    /// The last step of which frames may be written.
    pub(super) fn last(&self) -> u64 {
        self.unwritten.borrow().keys().next().copied().unwrap_or(u64::MAX)
    }

    /// Whether there is an order, so that somebody waits for what is written.
    #[cfg(feature = "mpi")]
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub(super) fn add(&self, step: u64) {
        if self.is_kept {
            *self.unwritten.borrow_mut().entry(step).or_default() += 1;
        }
    }

    pub(super) fn done(&self, step: u64) {
        let mut unwritten = self.unwritten.borrow_mut();
        let Some(left) = unwritten.get_mut(&step) else { return };
        *left -= 1;
        if *left == 0 {
            unwritten.remove(&step);
        }
    }

    /// Writes what had to wait, if more is allowed than `before`.
    pub(super) fn release(&self, mut before: u64) {
        while self.last() != before {
            before = self.last();
            for link in self.links.borrow().iter().filter_map(Weak::upgrade) {
                link.write_released();
            }
        }
    }
}
