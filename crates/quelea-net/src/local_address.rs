//! How a process is reached: the interface it uses, the port it listens on, the address it tells others.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::error::NetError;

/// How the ranks of this process are reached by those of others. By default: on any interface, at any port, at
/// the address that the coordinator sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddress {
    /// The only address that is used; connections are made from it too.
    pub ip: Option<IpAddr>,
    /// The port that ranks of other processes connect to; 0 for any.
    pub port: u16,
    /// What others are told instead, where they reach this process through address translation or a container's
    /// ports. A port of 0 is the one that is listened on.
    pub advertised: Option<SocketAddr>,
}

impl LocalAddress {
    /// What the environment says: `QUELEA_INTERFACE` (a name such as `eth1`, a subnet such as `10.0.0.0/8`, or an
    /// address), `QUELEA_LISTEN_PORT`, and `QUELEA_ADVERTISE` (`HOST` or `HOST:PORT`).
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<LocalAddress, NetError> {
        let get = |name: &str| env(name).filter(|value| !value.is_empty());
        let ip =
            get("QUELEA_INTERFACE").map(|spec| choose("QUELEA_INTERFACE", &spec)).transpose()?;
        let port = get("QUELEA_LISTEN_PORT").map(|text| {
            let port = text.parse::<u16>().ok().filter(|port| *port > 0);
            let problem = || {
                NetError::Setup(format!(
                    "QUELEA_LISTEN_PORT={text}: must be a port from 1 to 65535"
                ))
            };
            port.ok_or_else(problem)
        });
        let advertised = get("QUELEA_ADVERTISE").map(|text| advertised("QUELEA_ADVERTISE", &text));
        let (port, advertised) = (port.transpose()?.unwrap_or(0), advertised.transpose()?);
        Ok(LocalAddress { ip, port, advertised })
    }

    /// What others are told, if it is not what the coordinator sees.
    pub(crate) fn told(&self, port: u16) -> Option<SocketAddr> {
        let told = self.advertised?;
        Some(if told.port() == 0 { SocketAddr::new(told.ip(), port) } else { told })
    }

    /// Connects from the address that is to be used.
    pub(crate) fn connect(&self, target: &SocketAddr, limit: Duration) -> io::Result<TcpStream> {
        let Some(ip) = self.ip.filter(|ip| ip.is_ipv4() == target.is_ipv4()) else {
            return TcpStream::connect_timeout(target, limit);
        };
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(*target),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        socket.bind(&SocketAddr::new(ip, 0).into())?;
        socket.connect_timeout(&(*target).into(), limit)?;
        Ok(socket.into())
    }
}

/// The address that a text names: an address, or a name that resolves.
pub fn advertised(field: &str, text: &str) -> Result<SocketAddr, NetError> {
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, 0));
    }
    let with_port = if text.contains(':') { text.to_string() } else { format!("{text}:0") };
    let found = with_port.to_socket_addrs();
    let refuse = |problem: String| NetError::Setup(format!("{field}={text}: {problem}"));
    let mut found = found.map_err(|error| refuse(format!("does not resolve: {error}")))?;
    found.next().ok_or_else(|| refuse("has no address".into()))
}

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface.
    pub name: String,
    /// One of its addresses.
    pub ip: IpAddr,
}

/// The address of the interface that `spec` chooses: by its name, by a subnet, or the address itself. `field` is
/// what an error names.
pub fn choose(field: &str, spec: &str) -> Result<IpAddr, NetError> {
    let all = interfaces().map_err(|error| NetError::Setup(format!("{field}: {error}")))?;
    choose_of(&all, spec).map_err(|problem| NetError::Setup(format!("{field}={spec}: {problem}")))
}

fn choose_of(all: &[InterfaceAddress], spec: &str) -> Result<IpAddr, String> {
    let list = || {
        let shown = all.iter().map(|one| format!("{} ({})", one.name, one.ip));
        shown.collect::<Vec<_>>().join(", ")
    };
    let usable = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        // Others cannot use it without naming an interface of their own.
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    let mut fitting: Vec<IpAddr> = if let Some((net, bits)) = spec.split_once('/') {
        let net = net.parse::<IpAddr>().ok().zip(bits.parse::<u8>().ok());
        let most = |net: &IpAddr| if net.is_ipv4() { 32 } else { 128 };
        let (net, bits) = net
            .filter(|(net, bits)| *bits <= most(net))
            .ok_or("must be a subnet as in 10.0.0.0/8, the name of an interface, or an address")?;
        all.iter().map(|one| one.ip).filter(|ip| is_inside(ip, &net, bits)).collect()
    } else if let Ok(ip) = spec.parse::<IpAddr>() {
        all.iter().map(|one| one.ip).filter(|own| *own == ip).collect()
    } else {
        all.iter().filter(|one| one.name == spec).map(|one| one.ip).filter(usable).collect()
    };
    // An interface with both kinds is used by the older one, as names are.
    fitting.sort_by_key(IpAddr::is_ipv6);
    fitting
        .first()
        .copied()
        .ok_or_else(|| format!("no interface of this machine fits; it has {}", list()))
}

fn is_inside(ip: &IpAddr, net: &IpAddr, bits: u8) -> bool {
    let (ip, net, width) = match (ip, net) {
        (IpAddr::V4(ip), IpAddr::V4(net)) => {
            (u128::from(ip.to_bits()), u128::from(net.to_bits()), 32)
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) => (ip.to_bits(), net.to_bits(), 128),
        _ => return false,
    };
    let shift = width - u32::from(bits);
    ip.checked_shr(shift) == net.checked_shr(shift)
}

/// All addresses of this machine's interfaces.
#[cfg(unix)]
pub fn interfaces() -> io::Result<Vec<InterfaceAddress>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the system writes the head of a list there, which is given back below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which is not given back before the loop has ended.
        let element = unsafe { &*next };
        next = element.ifa_next;
        if element.ifa_addr.is_null() || element.ifa_name.is_null() {
            continue;
        }
        // SAFETY: the name is a text that ends with 0 and lives as long as the list.
        let name = unsafe { std::ffi::CStr::from_ptr(element.ifa_name) };
        // SAFETY: the address lives as long as the list and begins with its family.
        let ip = unsafe { ip_of(element.ifa_addr) };
        let name = name.to_string_lossy().into_owned();
        found.extend(ip.map(|ip| InterfaceAddress { name, ip }));
    }
    // SAFETY: the list came from `getifaddrs`, and nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Nothing is known of interfaces here.
#[cfg(not(unix))]
pub fn interfaces() -> io::Result<Vec<InterfaceAddress>> {
    Err(io::Error::other("interfaces are not known on this system"))
}

/// The address that the system has written.
///
/// # Safety
/// `address` points to an address of the length that its family has.
#[cfg(unix)]
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: every address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one; it need not be aligned.
            let four = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(four.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let six = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(six.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<InterfaceAddress> {
        let of = |name: &str, ip: &str| InterfaceAddress {
            name: name.into(),
            ip: ip.parse().expect("an address"),
        };
        vec![
            of("lo", "127.0.0.1"),
            of("eth0", "192.168.1.5"),
            of("ib0", "fe80::1"),
            of("ib0", "fd00:7::5"),
            of("ib0", "10.7.0.5"),
        ]
    }

    #[test]
    fn an_interface_is_chosen_by_name_subnet_or_address() {
        let cases = [
            ("eth0", "192.168.1.5"),
            ("ib0", "10.7.0.5"),
            ("10.0.0.0/8", "10.7.0.5"),
            ("fd00:7::/32", "fd00:7::5"),
            ("192.168.1.5", "192.168.1.5"),
            ("0.0.0.0/0", "127.0.0.1"),
        ];
        for (spec, expected) in cases {
            assert_eq!(choose_of(&machine(), spec).expect(spec).to_string(), expected, "{spec}");
        }
    }

    #[test]
    fn what_chooses_nothing_is_refused_with_what_there_is() {
        for spec in ["eth7", "10.8.0.0/16", "10.7.0.6"] {
            let told = choose_of(&machine(), spec).expect_err(spec);
            let expected =
                "no interface of this machine fits; it has lo (127.0.0.1), eth0 (192.168.1.5)";
            assert!(told.starts_with(expected), "{told}");
        }
        for spec in ["10.0.0.0/33", "ten/8", "10.0.0.0/x"] {
            let told = choose_of(&machine(), spec).expect_err(spec);
            assert!(told.starts_with("must be a subnet"), "{told}");
        }
    }

    #[test]
    fn this_machine_has_a_loopback_address() {
        let all = interfaces().expect("the system knows");
        assert!(all.iter().any(|one| one.ip.is_loopback()), "{all:?}");
    }

    #[test]
    fn the_environment_says_how_a_process_is_reached() {
        let found = |pairs: &'static [(&str, &str)]| {
            let find = |name: &str| pairs.iter().find(|(key, _)| *key == name);
            LocalAddress::from_env(|name| find(name).map(|(_, value)| value.to_string()))
                .map_err(|error| error.to_string())
        };
        assert_eq!(found(&[]), Ok(LocalAddress::default()));
        let all = found(&[
            ("QUELEA_INTERFACE", "127.0.0.1"),
            ("QUELEA_LISTEN_PORT", "7001"),
            ("QUELEA_ADVERTISE", "203.0.113.5"),
        ]);
        let all = all.expect("good");
        assert_eq!((all.ip, all.port), (Some(IpAddr::from([127, 0, 0, 1])), 7001));
        assert_eq!(all.told(7001), Some("203.0.113.5:7001".parse().expect("an address")));
        let six = found(&[("QUELEA_ADVERTISE", "[fd00::1]:7")]).expect("good");
        assert_eq!(six.told(1), Some("[fd00::1]:7".parse().expect("an address")));
        let wrong = found(&[("QUELEA_LISTEN_PORT", "0")]).expect_err("no port");
        assert!(wrong.starts_with("QUELEA_LISTEN_PORT=0: must be a port"), "{wrong}");
        let nobody = found(&[("QUELEA_ADVERTISE", "nobody.invalid")]).expect_err("no name");
        assert!(
            nobody.starts_with("QUELEA_ADVERTISE=nobody.invalid: does not resolve"),
            "{nobody}"
        );
    }
}
