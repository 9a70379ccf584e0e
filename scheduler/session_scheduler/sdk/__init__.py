"""The public interface for servers and commands of plugins. Import single modules; each loads only what it needs."""
