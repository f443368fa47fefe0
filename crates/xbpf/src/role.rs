//! What a program of ours is to others on its interface.

/// A program's name and turn where several share an interface by a libxdp dispatcher: what one passes, the next gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// The program's name, as `ip link` and `xdp-loader status` show it; 15 characters at most.
    pub name: &'static str,
    /// Lower ones run first; libxdp's default is 50.
    pub priority: u32,
}

impl Role {
    /// Filters, so it runs before everything that answers or forwards.
    pub const GUARD: Self = Self { name: "expressway_grd", priority: 20 };
    /// Gives the packets of services to nodes.
    pub const BALANCE: Self = Self { name: "expressway_lb", priority: 30 };
    /// Routes what is not for this host.
    pub const FORWARD: Self = Self { name: "expressway_fwd", priority: 40 };
    /// Takes what is for the services of this host ([`crate::Redirect`]).
    pub const REDIRECT: Self = Self { name: crate::PROGRAM, priority: 50 };

    /// All of them, in the order of their turns.
    pub const ALL: [Self; 4] = [Self::GUARD, Self::BALANCE, Self::FORWARD, Self::REDIRECT];

    /// Whether a program of this name is one of these, so that it may be removed once its process was killed.
    pub(crate) fn is_ours(name: &str) -> bool {
        Self::ALL.iter().any(|role| role.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_turns_are_ordered() {
        assert!(Role::ALL.iter().all(|role| role.name.len() <= 15));
        assert!(Role::ALL.windows(2).all(|pair| pair[0].priority < pair[1].priority));
    }
}
