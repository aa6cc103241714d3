//! Every transport under the same tests.

mod late;
mod resume;
mod write_order;

use std::cell::RefCell;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use quelea_core::random::Rng;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::stream::{ByteStream, Receiving, SendBudget, StreamLink};
use super::tcp::tests::endpoint as tcp_endpoint;
use super::*;

/// A link that keeps nothing and refuses nothing.
const UNLIMITED: SendBudget = SendBudget { kept_bytes: 0, unsent_bytes: u64::MAX };

/// Elements of the model, and so of the longest vector.
const LEN: usize = 1 << 20;
/// A step whose messages are refused.
const REFUSED_STEP: u64 = 1 << 40;
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A rank that keeps what it receives.
#[derive(Default)]
pub(super) struct Collector {
    frames: RefCell<Vec<(Rank, u32, Message)>>,
    ended: RefCell<Vec<(Rank, LinkError)>>,
    changed: Notify,
}

impl FrameSink for Collector {
    fn frame(&self, from: Rank, sent_micros: u32, message: Message) -> Result<(), String> {
        if message.step == REFUSED_STEP {
            return Err("it is of a step that never was".into());
        }
        self.frames.borrow_mut().push((from, sent_micros, message));
        self.changed.notify_one();
        Ok(())
    }

    fn restored(&self, peer: Rank, reason: &LinkError) {
        panic!("nothing broke on the link with {peer}: {reason}");
    }

    fn ended(&self, peer: Rank, error: LinkError) {
        self.ended.borrow_mut().push((peer, error));
        self.changed.notify_one();
    }
}

impl Collector {
    /// What it has received.
    pub(super) fn frames(&self) -> std::cell::Ref<'_, Vec<(Rank, u32, Message)>> {
        self.frames.borrow()
    }

    /// Takes what it has received.
    pub(super) fn take_frames(&self) -> Vec<(Rank, u32, Message)> {
        self.frames.take()
    }

    /// Waits until `is_enough`.
    pub(super) async fn until(&self, is_enough: impl Fn(&Collector) -> bool) {
        let wait = async {
            while !is_enough(self) {
                self.changed.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("it comes in time");
    }

    pub(super) async fn end(&self) -> (Rank, LinkError) {
        self.until(|own| !own.ended.borrow().is_empty()).await;
        self.ended.borrow_mut().pop().expect("there is one")
    }
}

/// A socket of the Unix domain: another stream of bytes, with other buffers than TCP's.
#[derive(Debug)]
pub(super) struct UnixBytes(tokio::net::UnixStream);

impl UnixBytes {
    pub(super) fn new(stream: UnixStream) -> UnixBytes {
        stream.set_nonblocking(true).expect("a socket can");
        UnixBytes(tokio::net::UnixStream::from_std(stream).expect("in a runtime"))
    }
}

impl ByteStream for UnixBytes {
    fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> {
        self.0.writable()
    }

    fn try_read(&self, target: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(target)
    }

    fn readable(&self) -> impl Future<Output = io::Result<()>> {
        self.0.readable()
    }

    fn expect_bytes(&self, _missing: usize) {}
}

#[derive(Debug)]
struct UnixEndpoint {
    peer: Rank,
    stream: UnixStream,
}

impl RankEndpoint for UnixEndpoint {
    fn attach(self: Box<Self>, context: &AttachContext<'_>) -> io::Result<Attached> {
        let (from, peer) = (context.rank, self.peer);
        let route = Route { from, to: peer };
        let link = StreamLink::new(route, UnixBytes::new(self.stream), context.order, UNLIMITED);
        let limits = limits(peer, from, context.len, context.inspects);
        let receiving = Receiving { limits, pool: context.pool.clone() };
        let links = vec![(peer, Rc::<StreamLink<UnixBytes>>::clone(&link) as Rc<dyn Link>)];
        let task: LinkTask = Box::new(move |sink| {
            Box::pin(async move {
                let error = link.run(&receiving, &*sink).await;
                sink.ended(peer, error);
            })
        });
        Ok(Attached { links, tasks: vec![task] })
    }

    fn socket(&self, _peer: Rank) -> Option<&TcpStream> {
        None
    }
}

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Carrier {
    InProcess,
    Tcp,
    Unix,
    SharedMemory,
}

const CARRIERS: [Carrier; 4] =
    [Carrier::InProcess, Carrier::Tcp, Carrier::Unix, Carrier::SharedMemory];

/// Two connected sockets.
pub(super) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let far = TcpStream::connect(listener.local_addr().expect("it listens")).expect("it accepts");
    let (near, _) = listener.accept().expect("it connects");
    (near, far)
}

/// The endpoints of ranks 0 and 1.
fn endpoints(carrier: Carrier) -> [Box<dyn RankEndpoint>; 2] {
    match carrier {
        Carrier::InProcess => {
            let both = in_process::connect(&[Rank(0), Rank(1)]);
            both.try_into().expect("one for each rank")
        }
        Carrier::Tcp => {
            let (near, far) = tcp_pair();
            [tcp_endpoint(Rank(1), near), tcp_endpoint(Rank(0), far)]
        }
        Carrier::Unix => {
            let (near, far) = UnixStream::pair().expect("a pair");
            let endpoint = |peer, stream| Box::new(UnixEndpoint { peer, stream }) as Box<_>;
            [endpoint(Rank(1), near), endpoint(Rank(0), far)]
        }
        Carrier::SharedMemory => shared_memory::tests::endpoints(),
    }
}

/// A rank with one peer.
struct OneLink {
    link: Rc<dyn Link>,
    sink: Rc<Collector>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl OneLink {
    /// Attaches on the present thread.
    fn new(rank: Rank, endpoint: Box<dyn RankEndpoint>) -> OneLink {
        let (order, pool) = (WriteOrder::new(false), Pool::new());
        let context = AttachContext { rank, order: &order, pool: &pool, len: LEN, inspects: false };
        let Attached { mut links, tasks } = endpoint.attach(&context).expect("it can be attached");
        assert_eq!(links.len(), 1);
        let (_, link) = links.remove(0);
        let sink = Rc::new(Collector::default());
        let start = |task: LinkTask| tokio::task::spawn_local(task(Rc::<Collector>::clone(&sink)));
        let tasks = tasks.into_iter().map(start).collect();
        OneLink { link, sink, tasks }
    }

    /// As if its process had ended.
    async fn end(self) {
        for task in self.tasks {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Both ranks of a connection.
fn both(carrier: Carrier) -> (OneLink, OneLink) {
    let [first, second] = endpoints(carrier);
    (OneLink::new(Rank(0), first), OneLink::new(Rank(1), second))
}

/// A message with a vector of drawn numbers, whose length is that of a few elements or of a model.
pub(super) fn drawn(rng: &mut Rng, step: u64) -> Message {
    let len = if rng.below(4) == 0 { LEN } else { rng.below(9_000) as usize };
    let values: Vec<f32> = (0..len).map(|_| rng.normal() as f32).collect();
    Message::new(rng.below(200) as u8, step, 0).with(Pool::new().copy(&values))
}

/// All bytes of a message.
pub(super) fn bytes(message: &Message) -> Vec<u8> {
    let route = Route { from: Rank(0), to: Rank(1) };
    let header = quelea_wire::frame::encode_header(route, 0, message);
    let [first, second] = quelea_wire::frame::slices(message);
    [&header[..], first, second].concat()
}

async fn locally(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

#[tokio::test(flavor = "current_thread")]
async fn both_directions_carry_every_message_in_order_with_the_same_bits() {
    for carrier in CARRIERS {
        locally(async {
            let (first, second) = both(carrier);
            let mut rng = Rng::new(3, "transport", 0);
            let sent: Vec<Message> = (0..24).map(|step| drawn(&mut rng, step)).collect();
            for (number, message) in sent.iter().enumerate() {
                for one in [&first, &second] {
                    one.link.push(number as u32, message.clone());
                    one.link.flush().expect("it is open");
                }
            }
            for (one, from) in [(&first, Rank(1)), (&second, Rank(0))] {
                one.sink.until(|sink| sink.frames.borrow().len() == sent.len()).await;
                for (number, (got, expected)) in
                    one.sink.frames.borrow().iter().zip(&sent).enumerate()
                {
                    assert_eq!((got.0, got.1), (from, number as u32), "{carrier:?}");
                    assert_eq!(bytes(&got.2), bytes(expected), "{carrier:?}: message {number}");
                }
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn within_a_process_vectors_stay_where_they_are() {
    locally(async {
        let (first, second) = both(Carrier::InProcess);
        let message = drawn(&mut Rng::new(3, "place", 0), 0);
        let address = |message: &Message| quelea_wire::frame::slices(message)[0].as_ptr();
        first.link.push(0, message.clone());
        second.sink.until(|sink| !sink.frames.borrow().is_empty()).await;
        assert_eq!(address(&second.sink.frames.borrow()[0].2), address(&message));
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_message_that_cannot_be_taken_ends_in_its_reason() {
    for carrier in CARRIERS {
        locally(async {
            let (first, second) = both(carrier);
            first.link.push(0, Message::new(1, REFUSED_STEP, 0));
            first.link.flush().expect("it is open");
            let (peer, error) = second.sink.end().await;
            assert_eq!(peer, Rank(0));
            assert!(matches!(&error, LinkError::Refused(_)), "{carrier:?}: {error:?}");
            assert!(!error.is_disconnection());
        })
        .await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_peer_that_ends_is_seen_as_closed() {
    for carrier in CARRIERS {
        locally(async {
            let (first, second) = both(carrier);
            second.end().await;
            let error = if carrier == Carrier::InProcess {
                // Whether a rank of the same process lives is known to the controller.
                first.link.flush().expect_err("nobody receives")
            } else {
                let (peer, error) = first.sink.end().await;
                assert_eq!(peer, Rank(1));
                error
            };
            assert!(matches!(error, LinkError::Closed), "{carrier:?}: {error:?}");
        })
        .await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_connection_that_is_reset_is_told_from_one_that_is_closed() {
    locally(async {
        let (near, far) = tcp_pair();
        let one = OneLink::new(Rank(0), tcp_endpoint(Rank(1), near));
        socket2::SockRef::from(&far).set_linger(Some(Duration::ZERO)).expect("a socket can");
        drop(far);
        let (_, error) = one.sink.end().await;
        assert!(matches!(error, LinkError::Reset(_)), "{error:?}");
        assert!(error.is_disconnection());
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_time_out_of_the_kernel_is_told_from_a_reset() {
    let error = LinkError::from(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    assert!(matches!(error, LinkError::TimedOut(_)), "{error:?}");
    let error = LinkError::from(io::Error::from_raw_os_error(libc::ENETUNREACH));
    assert!(matches!(error, LinkError::Broken(_)), "{error:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn bytes_that_are_no_frame_of_the_link_are_the_peers_fault() {
    locally(async {
        let (near, mut far) = tcp_pair();
        let one = OneLink::new(Rank(0), tcp_endpoint(Rank(1), near));
        // A good frame in the wrong direction.
        far.write_all(&bytes(&Message::new(1, 0, 0))).expect("it is open");
        let (peer, error) = one.sink.end().await;
        assert_eq!(peer, Rank(1));
        assert!(matches!(error, LinkError::Frame(FrameError::Route { .. })), "{error:?}");
        assert!(!error.is_disconnection());
    })
    .await;
}

#[test]
fn a_transport_is_found_by_its_name() {
    for kind in TransportKind::ALL {
        assert_eq!(kind.name().parse::<TransportKind>().expect("its own name"), kind);
    }
    let error = "pigeon".parse::<TransportKind>().expect_err("there is none");
    assert_eq!(error.to_string(), "there is no transport \"pigeon\"; there are: auto, tcp, mpi");
}

/// What waits for a peer that reads nothing is bounded, however fast its sender is.
#[test]
fn a_peer_that_reads_nothing_is_lost_when_its_budget_is_full() {
    let (own, _other) = UnixStream::pair().expect("a socket");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let tasks = LocalSet::new();
    tasks.block_on(&runtime.expect("a runtime"), async {
        let route = Route { from: Rank(0), to: Rank(1) };
        let budget = SendBudget { kept_bytes: 0, unsent_bytes: 4 << 20 };
        let order = WriteOrder::new(false);
        let link = StreamLink::new(route, UnixBytes::new(own), &order, budget);
        let (sink, pool) = (Collector::default(), Pool::new());
        let receiving =
            Receiving { limits: limits(Rank(1), Rank(0), LEN, false), pool: pool.clone() };
        let vector = pool.copy(&vec![1.0; 1 << 18]);
        for step in 0..8 {
            link.push(0, Message::new(1, step, 0).with(vector.clone()));
        }
        let ended = tokio::time::timeout(PATIENCE, link.run(&receiving, &sink)).await;
        let told = ended.expect("it does not wait for the peer").to_string();
        assert!(told.starts_with("it does not read what is sent to it: "), "{told}");
        assert!(told.ends_with("4194304 may"), "{told}");
    });
}
