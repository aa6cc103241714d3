//! A connection for control packets, plain or encrypted, which one thread reads while others write.
//!
//! ```text
//! TLS handshake ─►  server: nonce  ─►  worker: nonce, proof  ─►  server: verdict, proof
//! ```

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Security;
use super::authority::{self, RunAuthority};
use super::secret::{Binding, Role, RunSecret, random_bytes};
use super::session::TlsSession;
use super::token::JoinToken;
use crate::error::NetError;
use crate::protocol::{PacketStream, Wait, read_within};

/// What is read from the socket at once.
const READ_BYTES: usize = 64 << 10;

/// Who may come in, at the side that listens.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) authority: Arc<RunAuthority>,
    pub(crate) secret: RunSecret,
    /// When nobody new may come any more.
    pub(crate) expires: Option<SystemTime>,
}

impl Access {
    /// To a run that is coordinated at `ip`; nothing where connections are plain.
    pub(crate) fn new(
        run: u64,
        ip: IpAddr,
        security: &Security,
        token_seconds: f64,
    ) -> Result<Option<Access>, NetError> {
        let (secret, expires) = match security {
            Security::Insecure => return Ok(None),
            Security::Automatic if ip.is_loopback() => return Ok(None),
            Security::Secret(secret) => (secret.clone(), None),
            Security::Automatic => {
                let valid = Duration::try_from_secs_f64(token_seconds).unwrap_or_default();
                (RunSecret::random()?, Some(SystemTime::now() + valid))
            }
        };
        let authority = Arc::new(RunAuthority::new(run)?);
        Ok(Some(Access { authority, secret, expires }))
    }

    /// What lets somebody in who reaches the listener at `address`.
    pub(crate) fn token(&self, address: String) -> JoinToken {
        let expires = self.expires.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        JoinToken {
            address,
            fingerprint: self.authority.fingerprint(),
            secret: self.secret.clone(),
            expires: expires.map_or(u64::MAX, |at| at.as_secs()),
        }
    }
}

/// What the listening side says to a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessVerdict {
    Welcome = 1,
    Refused = 2,
    Expired = 3,
}

/// A connection; clones are the same one.
#[derive(Clone)]
pub(crate) struct ControlStream {
    shared: Arc<Shared>,
}

struct Shared {
    socket: TcpStream,
    secure: Option<Secure>,
}

/// The socket is read and written without holding the session, so that reading never waits for writing.
struct Secure {
    session: Mutex<TlsSession>,
    /// Memory of whoever reads.
    reading: Mutex<Vec<u8>>,
    /// Encrypted bytes that were not written yet.
    writing: Mutex<Unwritten>,
}

#[derive(Default)]
struct Unwritten {
    bytes: Vec<u8>,
    written: usize,
}

impl fmt::Debug for ControlStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_secure = self.shared.secure.is_some();
        f.debug_struct("ControlStream")
            .field("socket", &self.shared.socket)
            .field("is_secure", &is_secure)
            .finish()
    }
}

impl ControlStream {
    /// Without encryption.
    pub(crate) fn plain(socket: TcpStream) -> ControlStream {
        ControlStream { shared: Arc::new(Shared { socket, secure: None }) }
    }

    /// Encrypted, with a session that is there already.
    pub(crate) fn secure(socket: TcpStream, session: TlsSession) -> ControlStream {
        let secure = Secure {
            session: Mutex::new(session),
            reading: Mutex::new(vec![0; READ_BYTES]),
            writing: Mutex::default(),
        };
        ControlStream { shared: Arc::new(Shared { socket, secure: Some(secure) }) }
    }

    /// Lets in somebody who knows the secret; where there is none, anybody. An error is fit for a warning
    /// here; the visitor learns nothing from it.
    pub(crate) fn admit(
        socket: TcpStream,
        access: Option<&Access>,
        wait: Wait,
    ) -> Result<ControlStream, String> {
        let Some(access) = access else { return Ok(ControlStream::plain(socket)) };
        let text = |error: io::Error| told(&error);
        let connection =
            rustls::server::UnbufferedServerConnection::new(access.authority.listening())
                .map_err(|error| error.to_string())?;
        let session = TlsSession::listen(connection, &socket, wait).map_err(text)?;
        let stream = ControlStream::secure(socket, session);
        let server_nonce = random_bytes().map_err(|error| error.to_string())?;
        stream.transmit(&server_nonce).map_err(text)?;
        let mut answer = [0; 64];
        stream.receive_all(&mut answer, &wait).map_err(text)?;
        let (nonce, proof) = answer.split_at(32);
        let binding = Binding {
            certificate: access.authority.fingerprint(),
            server_nonce,
            client_nonce: nonce.try_into().expect("half of 64 bytes"),
        };
        let is_over = access.expires.is_some_and(|expires| SystemTime::now() >= expires);
        let verdict = if !access.secret.verify(Role::Joins, &binding, proof) {
            AccessVerdict::Refused
        } else if is_over {
            AccessVerdict::Expired
        } else {
            AccessVerdict::Welcome
        };
        let mut reply = [0; 33];
        reply[0] = verdict as u8;
        if verdict != AccessVerdict::Refused {
            reply[1..].copy_from_slice(&access.secret.proof(Role::Serves, &binding));
        }
        let replied = stream.transmit(&reply).map_err(text);
        match verdict {
            AccessVerdict::Welcome => replied.map(|()| stream),
            AccessVerdict::Refused => Err("it does not know the run's secret".into()),
            AccessVerdict::Expired => Err("its token has expired".into()),
        }
    }

    /// Enters where somebody listens who knows the secret, and has this fingerprint if one is known.
    pub(crate) fn enter(
        socket: TcpStream,
        secret: &RunSecret,
        fingerprint: Option<[u8; 32]>,
        wait: Wait,
    ) -> Result<ControlStream, EntryError> {
        let session = TlsSession::dial(authority::joining(fingerprint)?, &socket, wait);
        let session = session.map_err(|error| {
            // The only certificate that is refused is one with another fingerprint.
            let is_other = error.to_string().contains("invalid peer certificate");
            if is_other { EntryError::Other } else { error.into() }
        })?;
        let shown = session.peer_certificate().map(authority::fingerprint);
        let certificate = shown.ok_or(EntryError::Unproven)?;
        let stream = ControlStream::secure(socket, session);
        let mut server_nonce = [0; 32];
        stream.receive_all(&mut server_nonce, &wait)?;
        let client_nonce = random_bytes()?;
        let binding = Binding { certificate, server_nonce, client_nonce };
        let proof = secret.proof(Role::Joins, &binding);
        stream.transmit(&[client_nonce, proof].concat())?;
        let mut reply = [0; 33];
        stream.receive_all(&mut reply, &wait)?;
        if reply[0] == AccessVerdict::Refused as u8 {
            return Err(EntryError::Refused);
        }
        if !secret.verify(Role::Serves, &binding, &reply[1..]) {
            return Err(EntryError::Unproven);
        }
        match reply[0] {
            verdict if verdict == AccessVerdict::Welcome as u8 => Ok(stream),
            verdict if verdict == AccessVerdict::Expired as u8 => Err(EntryError::Expired),
            _ => Err(EntryError::Unproven),
        }
    }

    /// Whether what it carries is encrypted.
    pub(crate) fn is_secure(&self) -> bool {
        self.shared.secure.is_some()
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.shared.socket.peer_addr()
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.socket.local_addr()
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.shared.socket.shutdown(how)
    }

    pub(crate) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.shared.socket.set_read_timeout(limit)
    }

    pub(crate) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.shared.socket.set_write_timeout(limit)
    }

    pub(crate) fn receive_all(&self, mut target: &mut [u8], wait: &Wait) -> io::Result<()> {
        while !target.is_empty() {
            let count = match &self.shared.secure {
                None => read_within(&self.shared.socket, wait, target)?,
                Some(secure) => {
                    secure.read(target, |raw| read_within(&self.shared.socket, wait, raw))?
                }
            };
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            target = &mut target[count..];
        }
        Ok(())
    }
}

/// Why a worker could not enter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EntryError {
    /// The other side does not take part in this protocol, or another run listens there.
    #[error("{}", told(.0))]
    Connection(#[from] io::Error),
    #[error("the coordinator there does not accept this token or secret: it is of another run")]
    Refused,
    #[error("another coordinator listens there than the one of this token")]
    Other,
    #[error("the token has expired; ask for a new one")]
    Expired,
    #[error("whoever listens there does not know the run's secret")]
    Unproven,
    #[error("{0}")]
    Setup(#[from] NetError),
}

impl EntryError {
    /// Whether another attempt may end differently: nobody listens yet, or is about to.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            EntryError::Connection(error) => error.kind() != ErrorKind::InvalidData,
            _ => false,
        }
    }
}

fn told(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "the connection was closed during the handshake".into()
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "it did not complete the handshake".into(),
        _ => error.to_string(),
    }
}

impl Secure {
    fn session(&self) -> MutexGuard<'_, TlsSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(
        &self,
        target: &mut [u8],
        read: impl Fn(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut raw = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            {
                let mut session = self.session();
                let count = session.open(target)?;
                if count > 0 || session.is_closed() {
                    return Ok(count);
                }
            }
            match read(&mut raw)? {
                0 => return Ok(0),
                count => self.session().feed(&raw[..count]),
            }
        }
    }

    fn write(&self, bytes: &[u8], socket: &TcpStream) -> io::Result<usize> {
        let mut pending = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        pending.flush(socket)?;
        let mut session = self.session();
        let count = session.seal(bytes)?;
        pending.bytes.extend_from_slice(session.unsent());
        let unsent = session.unsent().len();
        session.sent(unsent);
        drop(session);
        match pending.flush(socket) {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(error)
            }
            // The rest is written first by the next call.
            _ => Ok(count),
        }
    }
}

impl Unwritten {
    fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.written < self.bytes.len() {
            match socket.write(&self.bytes[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.written = 0;
        Ok(())
    }
}

impl Read for &ControlStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut socket = &self.shared.socket;
        match &self.shared.secure {
            None => socket.read(buffer),
            Some(secure) => secure.read(buffer, |raw| (&self.shared.socket).read(raw)),
        }
    }
}

impl Write for &ControlStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut socket = &self.shared.socket;
        match &self.shared.secure {
            None => socket.write(bytes),
            Some(secure) => secure.write(bytes, socket),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(secure) = &self.shared.secure else { return Ok(()) };
        let mut pending = secure.writing.lock().unwrap_or_else(PoisonError::into_inner);
        pending.flush(&self.shared.socket)
    }
}

impl PacketStream for ControlStream {
    fn socket(&self) -> &TcpStream {
        &self.shared.socket
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(buffer)
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<()> {
        let mut writer = self;
        writer.write_all(bytes)?;
        writer.flush()
    }
}
