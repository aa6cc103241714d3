//! Two ranks of this process that share memory, one of them sometimes lying.

use std::net::TcpStream;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use quelea_core::message::{Message, Part, Rank};
use quelea_core::payload::Pool;
use quelea_core::random::Rng;
use quelea_wire::frame::{self, FrameError, Route};
use tokio::task::LocalSet;

use super::memory::{Arena, ArenaSource, OwnPages, PeerPages};
use super::segment::{NO_TOKEN, OwnSegment, Place, SLOTS, Slot};
use super::*;
use crate::transport::tcp::tests::shared_endpoint;
use crate::transport::tests::{Collector, bytes, tcp_pair};
use crate::transport::{LinkError, LinkTask, RankEndpoint, WriteOrder};

/// Elements of the model.
const LEN: usize = 1 << 16;

/// What ranks 0 and 1 have after they have opened each other's memory.
pub(crate) fn pairs() -> [SharedPair; 2] {
    let offer = |own, peer| {
        let memory = SharedMemory::create().expect("this machine has shared memory");
        memory.offer(Rank(own), Rank(peer)).expect("memory and a pipe")
    };
    let (first, second) = (offer(0, 1), offer(1, 0));
    let (to_first, to_second) = (first.told(), second.told());
    let (of_second, of_first) = (first.open(&to_second), second.open(&to_first));
    let of_second = of_second.expect("the same process");
    let of_first = of_first.expect("the same process");
    [first.joined(of_second), second.joined(of_first)]
}

/// The endpoints of ranks 0 and 1.
pub(crate) fn endpoints() -> [Box<dyn RankEndpoint>; 2] {
    let ([first, second], (near, far)) = (pairs(), tcp_pair());
    [shared_endpoint(Rank(1), near, first), shared_endpoint(Rank(0), far, second)]
}

/// A rank with one peer.
struct SharingRank {
    link: Rc<dyn Link>,
    pool: Pool,
    sink: Rc<Collector>,
}

impl SharingRank {
    fn new(rank: Rank, endpoint: Box<dyn RankEndpoint>, inspects: bool) -> SharingRank {
        let (order, pool) = (WriteOrder::new(false), Pool::new());
        let context = AttachContext { rank, order: &order, pool: &pool, len: LEN, inspects };
        let Attached { mut links, tasks } = endpoint.attach(&context).expect("it can be attached");
        let (_, link) = links.remove(0);
        let sink = Rc::new(Collector::default());
        let start = |task: LinkTask| tokio::task::spawn_local(task(Rc::<Collector>::clone(&sink)));
        tasks.into_iter().map(start).for_each(drop);
        SharingRank { link, pool, sink }
    }

    fn send(&self, message: Message) {
        self.link.push(0, message);
        self.link.flush().expect("faults are told by the task");
    }
}

fn both(inspects: bool) -> [SharingRank; 2] {
    let [first, second] = endpoints();
    [SharingRank::new(Rank(0), first, inspects), SharingRank::new(Rank(1), second, inspects)]
}

async fn locally(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

/// Rank 1, who writes to its pages whatever it likes, and rank 0, who reads them.
struct Liar {
    pair: SharedPair,
    _connection: TcpStream,
    honest: SharingRank,
}

impl Liar {
    fn new() -> Liar {
        let ([first, pair], (near, far)) = (pairs(), tcp_pair());
        let honest = SharingRank::new(Rank(0), shared_endpoint(Rank(1), near, first), false);
        Liar { pair, _connection: far, honest }
    }

    /// Shows these slots and wakes the reader.
    fn show(&self, slots: &[Slot]) {
        for (number, slot) in slots.iter().enumerate() {
            self.pair.segment.write(number as u64, slot);
        }
        self.claim(slots.len() as u64);
    }

    fn claim(&self, frames: u64) {
        self.pair.segment.publish(frames);
        self.wake();
    }

    fn wake(&self) {
        use std::io::Write;
        // A reader that has ended the link is not to be woken.
        let _ = (&self.pair.peer.bell).write(&[1]);
    }

    async fn told(&self) -> LinkError {
        let (peer, error) = self.honest.sink.end().await;
        assert_eq!(peer, Rank(1));
        assert!(!error.is_disconnection(), "{error:?}");
        error
    }
}

/// A frame of `len` elements at a place of rank 1's memory.
fn slot(len: usize, offset: u64) -> Slot {
    let message = Message::new(1, 0, 0).with(vec![0.0; len].into());
    let header = frame::encode_header(Route { from: Rank(1), to: Rank(0) }, 0, &message);
    let nothing = Place { offset: 0, token: NO_TOKEN };
    Slot { header, places: [Place { offset, token: 0 }, nothing] }
}

#[tokio::test(flavor = "current_thread")]
async fn a_long_vector_is_read_where_it_is_and_goes_back_when_it_is_dropped() {
    locally(async {
        let [first, second] = both(false);
        let values: Vec<f32> = (0..LEN).map(|i| i as f32).collect();
        let sent = first.pool.copy(&values);
        first.send(Message::new(1, 0, 0).with(sent.clone()).and(sent.slice(8..5000)));
        drop(sent);
        second.sink.until(|sink| !sink.frames().is_empty()).await;
        let (_, _, message) = second.sink.take_frames().remove(0);
        let [Part::Values(mut whole), Part::Values(part)] = message.into_parts() else {
            panic!("two vectors")
        };
        assert_eq!((&*whole, &*part), (&values[..], &values[8..5000]));
        assert!(whole.try_mut().is_none(), "it is another's");
        assert_eq!(second.pool.allocated(), 0, "nothing was copied");
        first.link.flush().expect("nothing is wrong");
        assert_eq!(first.pool.outstanding(), 1, "the peer has it");
        drop((whole, part));
        first.link.flush().expect("nothing is wrong");
        assert_eq!(first.pool.outstanding(), 0, "it came back");
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn what_lies_elsewhere_is_copied_once_and_a_lent_vector_can_be_sent_on() {
    locally(async {
        let [first, second] = both(true);
        let values: Vec<f32> = (0..LEN).map(|i| 0.5 * i as f32).collect();
        first.send(Message::new(1, 0, 0).with(values.clone().into()));
        second.sink.until(|sink| !sink.frames().is_empty()).await;
        let (_, _, message) = second.sink.take_frames().remove(0);
        assert_eq!(message.largest_bits, Some((0.5 * (LEN - 1) as f32).to_bits()));
        second.send(message);
        first.sink.until(|sink| !sink.frames().is_empty()).await;
        let (_, _, message) = first.sink.take_frames().remove(0);
        assert_eq!(&*message.into_values(), &values);
    })
    .await;
}

/// More frames than there are slots, and more vectors than there are tokens, before anybody reads.
#[tokio::test(flavor = "current_thread")]
async fn frames_that_find_no_slot_wait_and_keep_their_order() {
    locally(async {
        let [first, second] = both(false);
        let count = 5 * SLOTS;
        for step in 0..count {
            let values = first.pool.copy(&[step as f32; 3]);
            first.link.push(0, Message::new(1, step, 0).with(values));
            first.link.flush().expect("nothing is wrong");
        }
        second.sink.until(|sink| sink.frames().len() as u64 == count).await;
        for (step, (_, _, message)) in second.sink.take_frames().into_iter().enumerate() {
            assert_eq!(
                (message.step, &*message.into_values()),
                (step as u64, &[step as f32; 3][..])
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_vector_that_is_said_to_lie_outside_is_refused() {
    for offset in [u64::MAX, u64::MAX - 3, 1 << 50, 4097, u64::from(u32::MAX) << 16] {
        locally(async {
            let liar = Liar::new();
            liar.show(&[slot(LEN, offset)]);
            let error = liar.told().await;
            assert!(matches!(&error, LinkError::Shared(_)), "{offset}: {error:?}");
        })
        .await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_vector_longer_than_the_models_is_refused_before_it_is_looked_at() {
    locally(async {
        let liar = Liar::new();
        liar.show(&[slot(2 * LEN + 2000, 4096)]);
        let error = liar.told().await;
        assert!(matches!(&error, LinkError::Frame(FrameError::Length { .. })), "{error:?}");
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn counts_that_cannot_be_end_the_link() {
    let lies: [fn(&Liar); 4] = [
        |liar| liar.claim(SLOTS + 1),
        |liar| liar.claim(u64::MAX),
        |liar| {
            liar.pair.segment.set_taken(1);
            liar.wake();
        },
        |liar| {
            liar.pair.segment.give_back(0, 7);
            liar.wake();
        },
    ];
    for lie in lies {
        locally(async {
            let liar = Liar::new();
            lie(&liar);
            let error = liar.told().await;
            assert!(matches!(&error, LinkError::Shared(_)), "{error:?}");
        })
        .await;
    }
}

/// Whatever is in the pages, the reader ends the link or takes a frame that could have been sent.
#[tokio::test(flavor = "current_thread")]
async fn no_slot_makes_the_reader_panic() {
    let mut rng = Rng::new(5, "slots", 0);
    for round in 0..300 {
        let mut damaged = slot(rng.below(3000) as usize, rng.below(1 << 20) * 4);
        match round % 3 {
            0 => damaged.header.iter_mut().for_each(|byte| *byte = rng.below(256) as u8),
            1 => damaged.header[rng.below(80) as usize] ^= 1 << rng.below(8),
            _ => damaged.places[0].offset = rng.below(u64::MAX),
        }
        locally(async {
            let liar = Liar::new();
            // The second claim is one that always ends the link.
            liar.show(&[damaged]);
            tokio::task::yield_now().await;
            liar.claim(u64::MAX);
            liar.told().await;
            for (_, _, message) in liar.honest.sink.take_frames() {
                assert!(bytes(&message).len() <= 80 + 4 * 3000);
            }
        })
        .await;
    }
}

#[test]
fn an_offer_of_another_process_or_machine_is_not_opened() {
    let memory = || SharedMemory::create().expect("this machine has shared memory");
    let (own, other) = (memory(), memory());
    let offer = own.offer(Rank(0), Rank(1)).expect("memory and a pipe");
    let theirs = other.offer(Rank(1), Rank(0)).expect("memory and a pipe");
    let refused = |offered: &SharedOffer| offer.open(offered).expect_err("it is not the one");
    assert!(offer.open(&theirs.told()).is_ok());
    assert_eq!(refused(&offer.told()), "its pages are those of another");
    let elsewhere = theirs.told().with_boot("another");
    assert_eq!(refused(&elsewhere), "it is on another machine, or in another virtual one");
    let gone = theirs.told().with_process(u32::MAX);
    assert_eq!(refused(&gone), "it is in another process namespace");
    let stranger = theirs.told().with_number(3);
    assert_eq!(refused(&stranger), "its vectors are those of another");
}

#[test]
fn pages_that_could_shrink_are_not_mapped() {
    use std::os::fd::AsRawFd;
    let file = tempfile();
    file.set_len(1 << 20).expect("a file");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let refused = PeerPages::open(path.as_ref()).expect_err("it is not sealed");
    assert_eq!(refused.to_string(), "its file of shared memory is not sealed");
    let (pipe, _other) = std::io::pipe().expect("a pipe");
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let refused = PeerPages::open(path.as_ref()).expect_err("it is a pipe");
    assert_eq!(refused.to_string(), "it is no file of shared memory");
}

/// A file without a name.
fn tempfile() -> std::fs::File {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    options.open(std::env::temp_dir()).expect("the temporary folder can be written")
}

#[test]
fn an_arena_gives_no_memory_twice_and_takes_it_back() {
    use quelea_core::payload::MemorySource;
    let arena = Arc::new(Arena::create(1 << 16).expect("memory"));
    let source = ArenaSource(Arc::clone(&arena));
    let mut all: Vec<_> = std::iter::from_fn(|| source.allocate(1000)).collect();
    assert_eq!(all.len(), ((1 << 16) - 4096) / 4032, "1,000 elements in lines of 64 bytes");
    for (number, vector) in all.iter_mut().enumerate() {
        vector.values_mut().expect("its own").fill(number as f32);
    }
    for (number, vector) in all.iter().enumerate() {
        assert!(vector.values().iter().all(|value| *value == number as f32));
        assert!(arena.offset_of(vector.values()).is_some());
    }
    assert!(arena.offset_of(&[0.0; 4]).is_none(), "not in the arena");
    drop(all.pop());
    assert!(source.allocate(1000).is_some());
}

#[test]
fn a_slot_and_every_number_come_back_as_they_were() {
    use super::segment::PeerSegment;
    let number = super::offer::ProcessNumber([1, 2]);
    let own = OwnSegment::create(number, Rank(0), Rank(1)).expect("memory");
    let path = format!("/proc/self/fd/{}", own.pages().descriptor().expect("open"));
    let peer = PeerSegment::open(path.as_ref(), number, Rank(0), Rank(1)).expect("the same");
    assert!(PeerSegment::open(path.as_ref(), number, Rank(1), Rank(0)).is_err(), "reversed");
    let places = [Place { offset: 1 << 40, token: 3 }, Place { offset: 64, token: NO_TOKEN }];
    let sent = Slot { header: std::array::from_fn(|i| i as u8), places };
    for number in [0, SLOTS - 1, SLOTS, 3 * SLOTS + 7] {
        own.write(number, &sent);
        own.publish(number + 1);
        assert_eq!((peer.head(), peer.slot(number)), (number + 1, sent.clone()));
    }
    own.set_taken(5);
    own.give_back(8, 9);
    assert_eq!((peer.taken(), peer.returned(), peer.returned_token(8)), (5, 9, 9));
    for (sleeps, for_room) in [(true, false), (false, true), (true, true), (false, false)] {
        own.set_waiting(sleeps, for_room);
        assert_eq!((peer.sleeps(), peer.waits_for_room()), (sleeps, for_room));
    }
    let pages = OwnPages::create(c"test", 64).expect("memory");
    pages.word(7).store(11, Ordering::Relaxed);
    assert_eq!(pages.word(7).load(Ordering::Relaxed), 11);
}
